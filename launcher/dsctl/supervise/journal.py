"""Tells what happens during a start: to whoever watches, and to a file for those who come later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dsctl.errors import ConfigError
from dsctl.model.event import Event, Phase

Watcher = Callable[[Event], None]


@dataclass
class Journal:
    """Numbers nothing, keeps nothing: stamps events with the time and hands them on.

    Any thread may say something; a full disk loses events in the file, never the engine.
    """

    watcher: Watcher
    clock: Callable[[], float]
    file: IO[str] | None = None
    _one_at_a_time: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def say(self, phase: Phase, event: str, message: str = "", **extra: Any) -> None:
        """One event; `extra` goes into the JSON as it is."""
        happened = Event(t=self.clock(), phase=phase, event=event, message=message, **extra)
        with self._one_at_a_time:
            if self.file is not None:
                with suppress(OSError):
                    self.file.write(happened.model_dump_json() + "\n")
                    self.file.flush()
            self.watcher(happened)


@contextmanager
def open_events(path: Path, *, fresh: bool) -> Iterator[IO[str]]:
    """The events file of a deployment: begun anew with a start, continued by who adopts it.

    Raises:
        ConfigError: it cannot be written.
    """
    if fresh:
        path.unlink(missing_ok=True)
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            remedy=f"free some space, or make {path.parent} writable for you",
        ) from None
    try:
        yield file
    finally:
        with suppress(OSError):  # what a full disk has not taken stays lost
            file.close()
