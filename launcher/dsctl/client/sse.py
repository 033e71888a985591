"""Server-sent events out of arbitrary pieces of bytes (WHATWG HTML, section 9.2.6). Pure."""

from __future__ import annotations

from collections.abc import Iterator


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
