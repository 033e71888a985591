"""Shows the events of a start: JSON lines on stdout, or a timeline for people on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsctl.cli.output import Format

if TYPE_CHECKING:
    from dsctl.model.event import Event


@contextmanager
def event_view(format_: Format) -> Iterator[Callable[[Event], None]]:
    """A watcher of events in the format asked for: on a terminal a live view, else lines."""
    if format_ is Format.JSON:
        yield _print_json_line
        return
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from dsctl.cli.live_view import live_view
        from dsctl.engine.state import StateDirectory
        from dsctl.paths import user_paths

        with live_view(StateDirectory(user_paths().deployment)) as show:
            yield show
        return
    view = _Timeline()
    try:
        yield view.show
    finally:
        view.clear()


def _print_json_line(event: Event) -> None:
    sys.stdout.write(event.model_dump_json() + "\n")
    sys.stdout.flush()


class _Timeline:
    """One line an event with the seconds since the first; progress is one line that moves."""

    _PROGRESS_EVERY_S = 10.0

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began: float | None = None
        self._last_progress = float("-inf")
        self._drawn = False

    def show(self, event: Event) -> None:
        """Show one event."""
        if self._began is None:
            self._began = event.t
        what = event.event.removeprefix("finding-") + ": " if "finding-" in event.event else ""
        text = f"{event.t - self._began:7.1f} s  {event.phase:<10}  {what}{event.message}"
        if event.event.endswith("progress"):
            self._show_progress(event.t, text)
            return
        if event.event in ("failed", "interrupted"):  # said once, as the command's error
            return
        self.clear()
        print(text, file=sys.stderr, flush=True)
        if what and event.extra("remedy"):
            print(f"{'':23}what to do: {event.extra('remedy')}", file=sys.stderr, flush=True)

    def _show_progress(self, t: float, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\033[K{text[:110]}")
            sys.stderr.flush()
            self._drawn = True
        elif t - self._last_progress >= self._PROGRESS_EVERY_S:
            print(text, file=sys.stderr, flush=True)
            self._last_progress = t

    def clear(self) -> None:
        """Leave the moving line."""
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._drawn = False
