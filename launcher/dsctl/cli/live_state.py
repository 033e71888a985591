"""What the live view knows, gathered from events, samples and the engine's log. No drawing here."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsctl.model.event import Event, Phase
from dsctl.model.sample import Sample
from dsctl.supervise.logtail import LogTail

#: Phases of a start in their order.
START = (
    Phase.PREFLIGHT,
    Phase.STARTING,
    Phase.LOADING,
    Phase.ALLOCATING,
    Phase.COMPILING,
    Phase.WARMING,
)
_TAIL_BYTES = 64 << 10
_LOG_LINES = 200


@dataclass
class LiveState:
    """`began` and `phases` in Unix seconds; `plan` as in the event of that name.

    `samples_file` and `log` are where the supervisor and the engine write.
    """

    samples_file: Path
    log: Path
    began: float | None = None
    phase: Phase = Phase.PREFLIGHT
    phases: dict[Phase, float] = field(default_factory=dict)
    said: dict[Phase, str] = field(default_factory=dict)
    progress: Event | None = None
    plan: dict[str, Any] | None = None
    sample: Sample | None = None
    before: Sample | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    show_log: bool = False
    _tail: LogTail | None = None

    def take(self, event: Event) -> None:
        """One event of the supervisor."""
        self.began = event.t if self.began is None else self.began
        told_late = event.event.endswith("progress") and event.phase in self.phases
        if (event.phase is not self.phase and not told_late) or event.phase not in self.phases:
            if event.event == "retry":  # begins anew
                self.phases = {p: t for p, t in self.phases.items() if p is Phase.PREFLIGHT}
                self.said.clear()
            self.phases[event.phase] = event.t
            self.phase, self.progress = event.phase, None
        if event.event.endswith("progress"):
            self.progress = event
        elif event.message:
            self.said[event.phase] = event.message
        if event.event == "plan":
            self.plan = event.extra("plan")

    def took_s(self, phase: Phase, now: float) -> float | None:
        """Seconds spent in a phase so far; None where it has not begun."""
        began = self.phases.get(phase)
        if began is None:
            return None
        later = [t for t in self.phases.values() if t > began]
        return (min(later) if later else now) - began

    def read(self) -> None:
        """Read what is new on disk: the newest sample, the end of the log."""
        newest = _last_sample(self.samples_file)
        if newest is not None and (self.sample is None or newest.t != self.sample.t):
            self.before, self.sample = self.sample, newest
        if self._tail is None:
            self._tail = LogTail(self.log, max_bytes=_TAIL_BYTES, most_behind=_TAIL_BYTES)
        self.lines.extend(self._tail.poll())

    def rate(self, name: str) -> float | None:
        """Growth per second of a counter of the metrics, between the newest two samples."""
        if self.sample is None or self.before is None or self.sample.t <= self.before.t:
            return None
        now, then = self.sample.metrics, self.before.metrics
        if now is None or then is None:
            return None
        a, b = getattr(then, name), getattr(now, name)
        return (
            (b - a) / (self.sample.t - self.before.t) if a is not None and b is not None else None
        )


def _last_sample(path: Path) -> Sample | None:
    with suppress(OSError, ValueError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return Sample.model_validate(json.loads(whole))
    return None
