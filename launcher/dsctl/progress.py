"""Progress of long work: what is done, how fast, how much longer. Pure arithmetic over a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: Called with one line for people and, for measurable work, how far it is.
Reporter = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """One report: `done` of `total` in `unit` (`bytes`, `packages`), rate and time left."""

    what: str
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    rate_per_s: float | None = None
    left_s: float | None = None


@dataclass
class Rate:
    """Turns a growing amount into a rate over the last `window_s` seconds and a time left."""

    clock: Callable[[], float]
    window_s: float = 10.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    def update(self, what: str, done: float, total: float | None, unit: str) -> Progress:
        """The report for the amount `done` seen now."""
        now = self.clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.window_s:
            self._seen.popleft()
        (t0, d0), (t1, d1) = self._seen[0], self._seen[-1]
        rate = (d1 - d0) / (t1 - t0) if t1 > t0 and d1 > d0 else None
        left = max(total - done, 0.0) / rate if rate and total else None
        return Progress(what, done, total, unit, rate, left)


def silent(progress: Progress) -> None:
    """A reporter that says nothing."""


def human_bytes(amount: float) -> str:
    """Bytes for people: `1.2 GiB`, `340 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Seconds for people: `4 s`, `3 min 05 s`, `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def line(progress: Progress) -> str:
    """One line for people."""
    text = progress.what
    if progress.total:
        if progress.unit == "bytes":
            text += f": {human_bytes(progress.done)} of {human_bytes(progress.total)}"
        else:
            text += f": {progress.done:.0f} of {progress.total:.0f} {progress.unit}"
        if progress.rate_per_s:
            if progress.unit == "bytes":
                text += f", {human_bytes(progress.rate_per_s)}/s"
            else:
                text += f", {progress.rate_per_s:.1f}/s"
        if progress.left_s is not None:
            text += f", {human_seconds(progress.left_s)} left"
    return text
