"""Logs from files and pipes: in large chunks, so that a 500 MB log is read in seconds."""

from __future__ import annotations

import codecs
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from dsctl.diagnose.clean import LONGEST_LINE, may_be_quoted
from dsctl.diagnose.matcher import TELLING, Matcher
from dsctl.errors import ConfigError
from dsctl.model.diagnosis import Diagnosis

CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def diagnose_file(name: str) -> Diagnosis:
    """Diagnose a log file, or standard input for `-`. Gzip and UTF-16 are read as they are.

    Raises:
        ConfigError: it cannot be read.
    """
    matcher = Matcher()
    read_into(matcher, [name])
    return matcher.result()


def read_into(matcher: Matcher, names: list[str]) -> None:
    """Feed files (or `-`) to a matcher, as one log.

    Raises:
        ConfigError: one of them cannot be read.
    """
    scan = Scan(matcher)
    for name in names:
        try:
            if name == "-":
                _scan_stream(scan, sys.stdin.buffer)
            else:
                with Path(name).open("rb") as file:
                    _scan_stream(scan, file)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ConfigError(
                f"{name}: cannot be read: {reason}",
                remedy="give the path of a log file, or `-` for standard input",
            ) from None
        scan.end()


def _scan_stream(scan: Scan, raw: IO[bytes]) -> None:
    for chunk in _decoded(_unzipped(raw)):
        scan.feed(chunk)


def _unzipped(raw: IO[bytes]) -> Iterator[bytes]:
    first = raw.read(CHUNK_BYTES)
    if not first.startswith(_GZIP):
        while first:
            yield first
            first = raw.read(CHUNK_BYTES)
        return
    stream = gzip.GzipFile(fileobj=cast("IO[bytes]", _Rejoined(first, raw)), mode="rb")
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


class _Rejoined:
    """A stream whose first bytes have been read already (a pipe cannot be set back)."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first = first
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._first:
            cut = len(self._first) if size < 0 else size
            piece, self._first = self._first[:cut], self._first[cut:]
            return piece + self._rest.read() if size < 0 else piece
        return self._rest.read(size)


def _decoded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks in UTF-8: a UTF-16 file (PowerShell's `>`) is turned into it."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, chunk in enumerate(chunks):
        if number == 0 and chunk[:2] in _UTF16:
            decoder = codecs.getincrementaldecoder(_UTF16[chunk[:2]])("replace")
            chunk = chunk[2:]
        yield decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk


class Scan:
    """Feeds a matcher from chunks of bytes; only lines with a live literal become text."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._number = 1  # of the line that the next byte belongs to
        self._rest = b""  # of a line whose end has not been read yet
        self._skipping = False  # the rest of an over-long line

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        if self._skipping:
            end = chunk.find(b"\n")
            if end < 0:
                return
            chunk = chunk[end:]
            self._skipping = False
        data = self._rest + chunk
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        self._lines(data, cut)
        if len(self._rest) > CHUNK_BYTES:  # no log line is that long: take its head, drop the rest
            self._lines(self._rest, len(self._rest))
            self._rest = b""
            self._skipping = True

    def end(self) -> None:
        """The file has ended; what follows begins a new line."""
        if self._rest:
            self.feed(b"\n")
        self._skipping = False

    def _lines(self, data: bytes, cut: int) -> None:
        """Take the lines of `data` up to `cut`."""
        matcher = self._matcher
        live = matcher.live
        counted = end = 0
        for index, hit, _ in matcher.prefilter.hits_in_bytes(data[:cut]):
            if not live[index] or hit < end:  # or in a line that was taken already
                continue
            start = data.rfind(b"\n", end, hit) + 1 or end
            if live[index] == TELLING and not may_be_quoted(data[start:hit]):
                matcher.glimpse(index)
                continue
            end = data.find(b"\n", hit, cut) + 1 or cut
            self._number += data.count(b"\n", counted, start)
            counted = start
            first = max(start, hit - LONGEST_LINE // 2)
            line = data[first : min(end, hit + LONGEST_LINE // 2)]
            matcher.consider(line.decode("utf-8", "replace"), self._number)
        self._number += data.count(b"\n", counted, cut)
