"""What comes after a failure: the same again, a named change that the profile allows, or the end.

Laws (property-tested): no configuration is started three times, every change comes from the
profile's `retry`, and every chain of failures ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from dsctl.model.base import Value
from dsctl.model.profile import Profile
from dsctl.model.sample import Action, Advice
from dsctl.progress import human_seconds
from dsctl.supervise.rules.context import Limits

#: Causes that may be gone by themselves, and how long to give them.
_TRANSIENT = {
    "memory.vram-busy-at-start": (20.0, "whatever held the card may be on its way out"),
    "engine.worker-died": (5.0, "a worker was killed from outside; the next may live"),
    "gpu.nvml-lost-in-container": (5.0, "a new container sees the cards again"),
}
#: Causes that the same machine will show again however often it is tried.
_LASTING = (
    "config.",
    "driver.",
    "kernel.",
    "pack.",
    "container.",
    "gpu.fell-off-bus",
    "gpu.gsp-timeout",
    "memory.mmap-refused",
    "memory.pin-failed",
    "comm.no-interface",
    "output.",
)
#: Of those families, what a fresh engine may be spared.
_PASSING = ("container.oom-killed",)
_FULL = 2  # starts of one configuration, at most


class Attempt(Value):
    """One start that failed: its cause and the knobs that were changed from the profile's."""

    cause: str
    changes: dict[str, Any] = Field(default_factory=dict)


def next_step(
    attempts: Sequence[Attempt],
    profile: Profile,
    *,
    remedy: str = "",
    chosen: frozenset[str] = frozenset(),
    current: Mapping[str, Any] | None = None,
) -> Advice:
    """What to do after the newest of `attempts` (oldest first) has failed.

    `chosen`: knobs that the user has set and nobody else changes; `current`: values of knobs where
    they differ from the profile's; `remedy`: the diagnosis' own.
    """
    last = attempts[-1]
    values = {key: knob.value for key, knob in profile.knobs.items()}
    values |= {**(current or {}), **last.changes}
    change = _change(last, attempts, profile, chosen, values)
    if change is not None:
        return change
    wait_s, why = _TRANSIENT.get(last.cause, (0.0, ""))
    if why and _times(last.changes, attempts) < _FULL:
        return Advice(action=Action.RETRY, why=f"{last.cause}: {why}", wait_s=wait_s)
    return Advice(action=Action.STOP, why=_why_stop(last, attempts, profile, chosen), remedy=remedy)


def restart_step(
    deaths: Sequence[float], cause: str, limits: Limits, *, remedy: str = ""
) -> Advice:
    """What to do after an engine that served has died; `deaths`: times, the newest last.

    The wait doubles with every death within the window; too many are a crash loop.
    """
    recent = [t for t in deaths if t > deaths[-1] - limits.restart_window_s]
    if is_lasting(cause):
        return Advice(
            action=Action.STOP, why=f"{cause} does not go away by starting again", remedy=remedy
        )
    if len(recent) > limits.restarts:
        return Advice(
            action=Action.STOP,
            why=f"crash loop: it died {len(recent)} times in "
            f"{human_seconds(recent[-1] - recent[0])} ({cause})",
            remedy=remedy or "`dsctl diagnose` and `dsctl bundle`; `dsctl up` starts it again",
        )
    wait_s = min(limits.backoff_s * 2 ** (len(recent) - 1), limits.backoff_most_s)
    return Advice(
        action=Action.RESTART,
        why=f"{cause}: restart {len(recent)} of {limits.restarts} within "
        f"{human_seconds(limits.restart_window_s)}",
        wait_s=wait_s,
    )


def is_lasting(cause: str) -> bool:
    """Whether starting the same again on this machine must fail in the same way."""
    return cause.startswith(_LASTING) and cause not in _PASSING


def _change(
    last: Attempt,
    attempts: Sequence[Attempt],
    profile: Profile,
    chosen: frozenset[str],
    values: Mapping[str, Any],
) -> Advice | None:
    """The next bounded change that the profile allows for this cause."""
    for retry in profile.retry:
        if last.cause not in retry.causes or retry.knob in chosen:
            continue
        tried = [a.changes.get(retry.knob) for a in attempts]
        for value in retry.values:
            if value == values.get(retry.knob) or value in tried:
                continue
            changes = {**last.changes, retry.knob: value}
            if _times(changes, attempts):
                continue
            return Advice(
                action=Action.RETRY_CHANGED,
                why=f"{last.cause}: {retry.knob} {_was(values.get(retry.knob))} becomes {value} "
                f"({retry.why})",
                knob=retry.knob,
                value=value,
            )
    return None


def _times(changes: Mapping[str, Any], attempts: Sequence[Attempt]) -> int:
    return sum(a.changes == changes for a in attempts)


def _was(value: Any) -> str:
    return "(not set)" if value is None else str(value)


def _why_stop(
    last: Attempt, attempts: Sequence[Attempt], profile: Profile, chosen: frozenset[str]
) -> str:
    kept = [r.knob for r in profile.retry if last.cause in r.causes and r.knob in chosen]
    if kept:
        return f"{last.cause}: {profile.id} would change {kept[0]}, but you have set it"
    allowed = [r for r in profile.retry if last.cause in r.causes]
    if allowed:
        knobs = ", ".join(dict.fromkeys(r.knob for r in allowed))
        return f"{last.cause}: every value that {profile.id} allows for {knobs} has been tried"
    if len(attempts) > 1:
        return f"{last.cause}: {len(attempts)} starts have failed"
    return f"{last.cause}: starting the same again would fail the same"
