"""Server-sent events out of arbitrary pieces of bytes (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dsctl.client.errors import Failure, FailureKind, RequestError

#: What a chat stream ends with.
DONE = b"[DONE]"


class SseDecoder:
    """Feed bytes as they come; yields the data of each complete event, as bytes.

    Pieces may split anywhere, inside a character or between CR and LF. Comments, ids, event names
    and retry hints are dropped: chat streams carry everything in `data`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The events that `piece` completes."""
        if self._rest:
            piece = self._rest + piece
        if b"\r" in piece:
            # A CR at the end may be half of a CRLF: keep it until the next byte is known.
            held = b"\r" if piece.endswith(b"\r") else b""
            piece = piece[: len(piece) - len(held)]
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *lines, rest = piece.split(b"\n")
        self._rest = rest + held
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                if data:  # an event without data is no event
                    yield data

    def close(self) -> Iterator[bytes]:
        """What a stream left unfinished when it ended without its last blank line."""
        yield from self.feed(b"\n\n")

    @property
    def is_clean(self) -> bool:
        """Nothing half-received is held."""
        return not self._rest and not self._data


def stamped_events(pieces: Iterator[bytes], began: float) -> Iterator[tuple[float, bytes | None]]:
    """(seconds since `began`, data of one event); the first item has no data: the stream opened.

    A piece is stamped when it has been read, before anything in it is parsed.

    Raises:
        RequestError: the pieces end before the stream says so.
    """
    decoder, opened, ended = SseDecoder(), False, False
    clock = time.perf_counter
    for piece in pieces:
        t = clock() - began
        if not opened:
            opened = True
            yield t, None
        for data in decoder.feed(piece):
            if data == DONE:
                ended = True
            else:
                yield t, data
    if not ended and DONE not in decoder.close():
        what = "in the middle" if opened else "before the first byte"
        raise RequestError(Failure(FailureKind.BROKEN, f"the answer ended {what}, no [DONE]"))
