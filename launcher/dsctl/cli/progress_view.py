"""Shows progress on stderr: one live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from dsctl.progress import Progress, line

_QUIET_EVERY_S = 10.0


class ProgressView:
    """A reporter with a place to draw. Use as a context manager; `report` is the reporter."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last_what = ""
        self._last_shown = 0.0
        self._drawn = False

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def report(self, progress: Progress) -> None:
        """Show one report."""
        if self._live:
            sys.stderr.write(f"\r\033[K{line(progress)[:110]}")
            sys.stderr.flush()
            self._drawn = True
            return
        now = time.monotonic()
        if progress.what != self._last_what or now - self._last_shown >= _QUIET_EVERY_S:
            print(line(progress), file=sys.stderr, flush=True)
            self._last_what, self._last_shown = progress.what, now

    def clear(self) -> None:
        """Leave the live line, so that what is printed next starts on a line of its own."""
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._drawn = False
