"""Where files are read from: `/`, or a recorded tree. Missing is a value, not a crash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Nothing a collector reads is larger; a wrong file is cut off, not swallowed.
_LARGEST_BYTES = 4 << 20
_BLOCK_BYTES = 64 << 10


class AbsentError(Exception):
    """A source cannot be read; the message is the reason, for people."""


@dataclass(frozen=True)
class Root:
    """The root of a host's files. `recorded` is True for a tree that is not the live host."""

    path: Path
    recorded: bool

    def at(self, name: str) -> Path:
        """Where `name`, a path without leading slash, lies."""
        return self.path / name

    def text(self, name: str) -> str:
        """The text of a file.

        Raises:
            AbsentError: it is missing, not readable, or leads out of the recorded tree.
        """
        return self.bytes(name).decode("utf-8", errors="replace")

    def bytes(self, name: str) -> bytes:
        """The content of a file, as `text`."""
        path = self.at(name)
        try:
            if self.recorded and not path.resolve().is_relative_to(self.path.resolve()):
                raise AbsentError(f"/{name} leads out of the recorded tree")
            return _read(path)
        except FileNotFoundError:
            raise AbsentError(f"/{name} is missing") from None
        except OSError as error:
            raise AbsentError(f"/{name} cannot be read: {error.strerror or error}") from None

    def text_or(self, name: str, default: str | None = None) -> str | None:
        """The stripped text of a file, or `default` where it cannot be read."""
        try:
            return self.text(name).strip()
        except AbsentError:
            return default

    def int_or(self, name: str) -> int | None:
        """The whole number in a file, or None."""
        text = self.text_or(name)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted; none where it cannot be listed."""
        try:
            return sorted(entry.name for entry in self.at(directory).iterdir())
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            return self.at(name).exists()
        except OSError:
            return False


def _read(path: Path) -> bytes:
    """The content, in pages: the kernel refuses large reads of its settings."""
    content = bytearray()
    with path.open("rb", buffering=0) as file:
        while len(content) < _LARGEST_BYTES and (block := file.read(_BLOCK_BYTES)):
            content += block
    return bytes(content)
