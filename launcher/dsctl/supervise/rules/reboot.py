"""Did the machine restart under us, and what is different since it last went well?"""

from __future__ import annotations

from dsctl.model.deployment import Deployment
from dsctl.model.event import Phase
from dsctl.model.facts import Facts
from dsctl.model.sample import Level, Verdict
from dsctl.supervise.rules.context import STARTING
from dsctl.supervise.rules.history import HostMark

_NAMES = {
    "kernel": "kernel",
    "driver": "GPU driver",
    "bios": "BIOS",
    "image": "engine image",
}
_BUSY = (*STARTING, Phase.READY, Phase.STALLED)


def mark_of(facts: Facts, image: str | None = None) -> HostMark:
    """The marks of a machine; `image`: digest of the engine's image or of its environment."""
    system = facts.system
    nvml = facts.nvml
    module = facts.kernel_module
    return HostMark(
        boot_id=system.boot_id if system is not None else None,
        kernel=system.kernel if system is not None else None,
        driver=(nvml.driver_version if nvml is not None else None)
        or (module.version if module is not None else None),
        bios=system.bios_version if system is not None else None,
        image=image,
    )


def differences(good: HostMark, now: HostMark) -> tuple[str, ...]:
    """In words, what differs since the last good start; what is unknown on a side is not named."""
    found = []
    for field, name in _NAMES.items():
        before, after = getattr(good, field), getattr(now, field)
        if before is not None and after is not None and before != after:
            found.append(f"{name} {before} is now {after}")
    return tuple(found)


def rebooted(left: Deployment | None, now: HostMark, good: HostMark | None) -> Verdict | None:
    """The verdict when a deployment was left loading or serving by another boot of the machine.

    `left` is the record as found on disk; `good` the marks of the last good start. A clean stop or
    failure before the reboot is none of this.
    """
    if left is None or left.phase not in _BUSY or left.engine_process is None:
        return None
    if now.boot_id is None or left.engine_process.boot_id in ("", now.boot_id):
        return None
    changed = differences(good, now) if good is not None else ()
    doing = "serving" if left.phase in (Phase.READY, Phase.STALLED) else str(left.phase)
    since = f"; since the last good start: {', '.join(changed)}" if changed else ""
    return Verdict(
        rule="reboot",
        level=Level.WARN,
        summary=f"the machine restarted while {left.profile} was {doing}{since}",
        numbers={"since_unix_s": left.since},
        cause="host.rebooted",
    )
