"""One reader in a thread of its own: it may fail or hang, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dsctl.progress import human_seconds

T = TypeVar("T")


class Unreadable(Exception):  # noqa: N818 - a state of the world, not an error of ours
    """A source has no answer; the message is the reason, for people."""


@dataclass(frozen=True)
class Cost:
    """What a reader has cost: reads made, CPU seconds of this process spent on them."""

    reads: int
    cpu_s: float


class Reader(Generic[T]):
    """Calls `read` every `every_s` seconds and keeps its last value.

    `every_s` None pauses it; the last value then stays. A read that takes longer than `deadline_s`
    makes the value unknown until it returns; a hanging read holds its own (daemon) thread only.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        *,
        every_s: float | None,
        deadline_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._read = read
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._clock = clock
        self._value: T | None = None
        self._reason = "not read yet"
        self._read_at: float | None = None
        self._began_at: float | None = None
        self._reads = 0
        self._cpu_s = 0.0
        self._stopped = False
        self._poke = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread = threading.Thread(target=self._loop, name=f"read-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more; does not wait for a read that hangs."""
        self._stopped = True
        self._poke.set()

    def pace(self, every_s: float | None) -> None:
        """Read at another pace from now on."""
        if every_s != self._every_s:
            self._every_s = every_s
            self._poke.set()

    def latest(self) -> tuple[T | None, str]:
        """The value with "", or None with the reason why there is none."""
        now = self._clock()
        began = self._began_at
        if began is not None and now - began > self._deadline_s:
            return None, f"{self.name}: no answer for {human_seconds(now - began)}"
        if self._reason:
            return None, self._reason
        every = self._every_s
        read_at = self._read_at
        if every is not None and read_at is not None:
            age = now - read_at
            if age > 3 * every + self._deadline_s:
                return None, f"{self.name}: last read {human_seconds(age)} ago"
        return self._value, ""

    @property
    def cost(self) -> Cost:
        """What it has cost so far."""
        return Cost(self._reads, self._cpu_s)

    def read_now(self) -> None:
        """One read, here and now."""
        self._began_at = self._clock()
        cpu = time.thread_time()
        try:
            self._value, reason = self._read(), ""
        except Unreadable as error:
            reason = str(error)
        except Exception as error:  # whatever it was, the supervisor goes on without this part
            reason = f"{self.name}: {type(error).__name__}: {error}".splitlines()[0]
        self._reason = reason
        self._read_at, self._began_at = self._clock(), None
        self._reads += 1
        self._cpu_s += time.thread_time() - cpu

    def _loop(self) -> None:
        while not self._stopped:
            if self._every_s is not None:
                self.read_now()
            self._poke.wait(self._every_s)
            self._poke.clear()
