"""What this machine remembers of its good starts: how long they took, and what it was then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dsctl.engine.keeper import boot_id
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError
from dsctl.model.deployment import Deployment

if TYPE_CHECKING:
    from dsctl.model.facts import Facts
    from dsctl.model.profile import Profile
    from dsctl.model.sample import Verdict
    from dsctl.supervise.situation import Situation
    from dsctl.supervise.watch import Watch

#: An engine that was older when its watch began was adopted: its first phases were not seen.
_ADOPTED_S = 5.0
#: Knobs that change how long a start takes.
_KEY_KNOBS = ("checkpoint", "pack_dir", "experts", "pool_gib", "max_model_len", "enforce_eager")


def key_of(profile: Profile) -> str:
    """What starts must share to teach anything about each other."""
    parts = [profile.id, profile.model.checkpoint]
    parts += [f"{k}={profile.value(k)}" for k in _KEY_KNOBS if profile.value(k) is not None]
    return " ".join(parts)


def image_of(deployment: Deployment) -> str | None:
    """What the engine runs in: the directory of its environment, by the program's path."""
    program = deployment.argv[0] if deployment.argv else ""
    parts = program.split("/")
    return parts[-3] if len(parts) > 2 and parts[-2] == "bin" else program or None


def remember(
    state: StateDirectory, ready: Deployment, situation: Situation, watch: Watch, now: float
) -> None:
    """Keep a start that has become ready; a full disk does not undo it."""
    from dsctl.supervise.rules.history import StartRecord
    from dsctl.supervise.rules.reboot import mark_of
    from dsctl.supervise.samplers.history import record_start

    record = StartRecord(
        t=now,
        profile=ready.profile,
        key=key_of(situation.profile),
        ready_s=watch.took_s,
        phases_s={} if watch.engine_age_s > _ADOPTED_S else watch.phases_s,
        load_bytes=watch.load_bytes,
        host=mark_of(situation.facts, image_of(ready)),
    )
    with suppress(DsctlError, OSError):
        record_start(state.history_file, record)


def was_rebooted(
    state: StateDirectory, left: Deployment | None, facts: Callable[[], Facts]
) -> Verdict | None:
    """The verdict on a deployment that another boot of this machine left starting or serving.

    `facts` are collected only where the boot is another one.
    """
    process = left.engine_process if left is not None else None
    if left is None or process is None or not left.is_up or process.boot_id in ("", boot_id()):
        return None
    from dsctl.supervise.rules.reboot import mark_of, rebooted
    from dsctl.supervise.samplers.history import read_history

    good = read_history(state.history_file).last_good(left.profile)
    now = mark_of(facts(), image_of(left))
    if now.boot_id is None:
        now = now.model_copy(update={"boot_id": boot_id()})
    return rebooted(left, now, good.host if good is not None else None)
