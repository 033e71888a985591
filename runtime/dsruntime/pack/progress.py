"""Progress of long work: how far, how fast, how much longer; as JSON lines or for people."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Progress:
    """One report: `done` of `total` bytes, or a remark (`total` None)."""

    what: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    rate_per_s: float | None = None
    left_s: float | None = None


Reporter = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Say nothing."""


@dataclass
class Meter:
    """Turns a growing number of bytes into reports, at most one every `every_s` seconds.

    The rate is that of the last `window_s` seconds, so a resumed build does not show the speed of
    what it skipped.
    """

    what: str
    total: int
    report: Reporter
    clock: Callable[[], float] = time.monotonic
    every_s: float = 0.5
    window_s: float = 10.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _last: float = float("-inf")

    def update(self, done: int, *, final: bool = False) -> None:
        """`done` bytes of `total` have been worked through."""
        now = self.clock()
        if not final and now - self._last < self.every_s:
            return
        self._last = now
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.window_s:
            self._seen.popleft()
        (t0, d0), (t1, d1) = self._seen[0], self._seen[-1]
        rate = (d1 - d0) / (t1 - t0) if t1 > t0 and d1 > d0 else None
        left = (self.total - done) / rate if rate else None
        self.report(Progress(self.what, done, self.total, "bytes", rate, left))


def json_lines(progress: Progress) -> None:
    """One JSON object a line on stderr: what the launcher reads."""
    print(json.dumps({"progress": asdict(progress)}), file=sys.stderr, flush=True)


class TextLines:
    """For people at a terminal: one live line; elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = float("-inf")
        self._what = ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._live and progress.total is not None:
            end = "\n" if progress.done >= progress.total else ""
            sys.stderr.write(f"\r\033[K{line(progress)}{end}")
            sys.stderr.flush()
        elif progress.what != self._what or now - self._last >= 10.0:
            print(line(progress), file=sys.stderr, flush=True)
            self._last, self._what = now, progress.what


def line(progress: Progress) -> str:
    """One line for people."""
    if not progress.total:
        return progress.what
    text = f"{progress.what}: {human(progress.done)} of {human(progress.total)}"
    if progress.rate_per_s:
        text += f", {human(progress.rate_per_s)}/s"
    if progress.left_s is not None:
        minutes, seconds = divmod(round(progress.left_s), 60)
        text += f", {f'{minutes} min ' if minutes else ''}{seconds} s left"
    return text


def human(amount: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
