"""The engine's log: how much there is of it and when it last said something new."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dsctl.model.sample import LogSample
from dsctl.supervise.logtail import LogTail

#: Written over and over whether or not the engine advances.
_WAITS = "No available shared memory broadcast block"
_PERIODIC = (_WAITS, "Avg prompt throughput", '"GET /metrics', '"GET /health', '"GET /v1/models')
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|Traceback)\b")
_SHARDS = re.compile(r"checkpoint shards:\s+\d+% Completed \| (\d+)/(\d+)")
_SHOWN = 300
#: Lines looked at closely in one call; of a flood the rest is only counted.
_CLOSE_LOOK = 5000


@dataclass
class EngineLog:
    """Follows the log: each call takes what is new and says what was seen so far."""

    tail: LogTail
    clock: Callable[[], float] = time.monotonic
    _lines: int = 0
    _size: int = 0
    _line_at: float | None = None
    _news_at: float | None = None
    _waits: int = 0
    _errors: int = 0
    _last: str = ""
    _shards: tuple[int, int] | None = field(default=None)

    def __call__(self) -> LogSample:
        """Read on, once."""
        self.note(self.tail.poll())
        return self.sample()

    def note(self, lines: Iterable[str]) -> None:
        """Take lines, from wherever they come."""
        now = self.clock()
        for looked, text in enumerate(lines):
            self._lines += 1
            self._size += len(text) + 1
            self._line_at = now
            if looked < _CLOSE_LOOK:
                self._look(text, now)

    def sample(self) -> LogSample:
        """What was seen so far."""
        done, total = self._shards or (None, None)
        return LogSample.model_construct(
            lines=self._lines,
            size_bytes=self._size,
            line_at=self._line_at,
            news_at=self._news_at,
            waits=self._waits,
            errors=self._errors,
            last_line=self._last,
            shards_done=done,
            shards_total=total,
        )

    def _look(self, text: str, now: float) -> None:
        if any(words in text for words in _PERIODIC):
            self._waits += _WAITS in text
            return
        self._news_at = now
        if text:
            self._last = text[:_SHOWN]
        self._errors += _ERROR.search(text) is not None
        if "shards" in text and (match := _SHARDS.search(text)) is not None:
            self._shards = int(match[1]), int(match[2])
