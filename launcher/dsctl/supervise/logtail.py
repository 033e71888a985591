"""Follows a log file that may not exist yet, may rotate and may end without a newline."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

#: A line longer than this is handed on in pieces, so that a flood cannot fill our memory.
_LINE_MAX = 64 << 10


@dataclass
class LogTail:
    """`poll()` returns the lines that are new since the last call.

    Rotation: when the path names another file than the open one, the open one is read to its end
    first. `max_bytes` bounds what one call reads; the rest comes with the next. Whoever must not
    fall behind gives `most_behind`: with more than that unread, all but the newest `max_bytes` are
    skipped and counted in `skipped_bytes`.
    """

    path: Path
    max_bytes: int = 4 << 20
    most_behind: int | None = None
    skipped_bytes: int = 0
    _file: IO[bytes] | None = field(default=None, repr=False)
    _rest: bytes = b""

    def poll(self) -> list[str]:
        """New whole lines, without their newlines; undecodable bytes are replaced."""
        chunk = self._read()
        if not chunk:
            return []
        pieces = (self._rest + chunk).split(b"\n")
        self._rest = pieces.pop()
        if len(self._rest) > _LINE_MAX:
            pieces.append(self._rest)
            self._rest = b""
        return [piece.rstrip(b"\r").decode(errors="replace") for piece in pieces]

    def drain(self) -> list[str]:
        """Everything that is there, the unfinished last line included."""
        lines: list[str] = []
        while new := self.poll():
            lines.extend(new)
        if self._rest:
            lines.append(self._rest.decode(errors="replace"))
            self._rest = b""
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> bytes:
        if self._file is None and not self._open():
            return b""
        assert self._file is not None
        if self.most_behind is not None:
            self._catch_up(self._file, self.most_behind)
        chunk = self._file.read(self.max_bytes)
        if chunk or not self._was_rotated():
            return chunk
        self.close()
        return self._file.read(self.max_bytes) if self._open() and self._file else b""

    def _catch_up(self, file: IO[bytes], most_behind: int) -> None:
        """Leave out what a flood has put between here and the end of the file."""
        here, end = file.tell(), os.fstat(file.fileno()).st_size
        if end - here <= most_behind:
            return
        file.seek(max(here, end - self.max_bytes))
        file.readline(_LINE_MAX)  # the rest of a line whose head is skipped
        self._rest = b""
        self.skipped_bytes += file.tell() - here

    def _open(self) -> bool:
        try:
            self._file = self.path.open("rb")
        except OSError:
            return False
        return True

    def _was_rotated(self) -> bool:
        assert self._file is not None
        try:
            here = self.path.stat()
        except OSError:
            return False
        mine = os.fstat(self._file.fileno())
        if here.st_ino != mine.st_ino or here.st_dev != mine.st_dev:
            return True
        if here.st_size < self._file.tell():  # truncated in place
            self._file.seek(0)
        return False


def log_parts(log: Path) -> list[Path]:
    """The rotated and current files of a log, oldest first."""
    rotated = [p for p in log.parent.glob(f"{log.name}.*") if p.suffix[1:].isdigit()]
    rotated.sort(key=lambda path: -int(path.suffix[1:]))
    return [path for path in (*rotated, log) if path.exists()]
