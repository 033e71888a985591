"""Background work of ours gives way while the supervisor of an engine sees memory run short.

Who works in the background (building a pack) says so in a directory that both know, and looks
there for a wish to pause. A wish is a file's time stamp and holds for some seconds only: a
supervisor that dies leaves nobody stopped, and nobody is stopped but by its own dsctl.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dsctl.engine.identity import identify, is_alive
from dsctl.files import write_atomically
from dsctl.model.deployment import ProcessIdentity
from dsctl.progress import Progress, Reporter

#: How long a wish to pause holds.
PAUSE_S = 20.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Background:
    """The directory where work and wishes are told."""

    directory: Path
    now: Callable[[], float] = time.time

    def works(self) -> bool:
        """Whether any is going on."""
        with suppress(OSError, ValueError):
            return any(
                is_alive(ProcessIdentity.model_validate_json(path.read_text()))
                for path in self.directory.glob("*.json")
            )
        return False

    def ask_to_pause(self) -> None:
        """All of it, for `PAUSE_S`; ask again for longer. What cannot be written is not asked."""
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._wish.touch()
            os.utime(self._wish, (self.now(), self.now()))

    def asked_to_pause(self) -> bool:
        """Whether a wish holds."""
        try:
            return 0 <= self.now() - self._wish.stat().st_mtime < PAUSE_S
        except OSError:
            return False

    @contextmanager
    def giving_way(self, process: subprocess.Popen[str], report: Reporter) -> Iterator[None]:
        """While `process` (leader of its group) works: told to all, and paused when wished."""
        done = threading.Event()
        mine = self.directory / f"{os.getpid()}.json"
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(mine, identify(os.getpid()).model_dump_json())
        watcher = threading.Thread(target=self._watch, args=(process, report, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            mine.unlink(missing_ok=True)

    def _watch(
        self, process: subprocess.Popen[str], report: Reporter, done: threading.Event
    ) -> None:
        stopped = False
        while not done.wait(_LOOK_S):
            if self.asked_to_pause() is stopped:
                continue
            stopped = not stopped
            if stopped:
                report(Progress("paused: the engine needs the memory; goes on by itself"))
            _signal(process, signal.SIGSTOP if stopped else signal.SIGCONT)
        if stopped:
            _signal(process, signal.SIGCONT)

    @property
    def _wish(self) -> Path:
        return self.directory / "pause"


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, number)
