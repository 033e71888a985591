"""API keys: who may ask through the gateway.

The keys themselves lie in one file that only its owner reads (0600), one `NAME KEY` a line. The
gateway gets their SHA-256 digests, in a directory of its own, and reads it on every request: adding
or removing a key needs no restart. Keys are 256 random bits, so their digests give nothing away.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsctl.errors import ConfigError, NotGoodError
from dsctl.files import exclusive, write_atomically

#: The key that `dsctl up` makes when there is none.
FIRST = "default"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LEAST_LENGTH = 24
_MOST_LENGTH = 512


@dataclass(frozen=True)
class ApiKey:
    """A key and the name by which the request log knows it."""

    name: str
    secret: str = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the key as clients send it, hexadecimal."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def new_secret() -> str:
    """A fresh key: 256 random bits."""
    return f"sk-{secrets.token_urlsafe(32)}"


def checked_name(name: str) -> str:
    """The name, if it can stand in a request log.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"key name {name!r}: use letters, digits, '.', '_' and '-', 64 at most",
            remedy="e.g. `dsctl key add laptop`",
        )
    return name


def checked_secret(text: str) -> str:
    """A key somebody brings, if it can be sent in a header and is no word.

    Raises:
        ConfigError: says what is wrong, never the key.
    """
    remedy = "give one line of 24 to 512 printable characters without spaces, or let dsctl make one"
    if "\n" in text or "\r" in text:
        raise ConfigError("the key has a newline in it", remedy=remedy)
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError("the key has a space or a character no header carries", remedy=remedy)
    if not _LEAST_LENGTH <= len(text) <= _MOST_LENGTH:
        raise ConfigError(f"the key has {len(text)} characters", remedy=remedy)
    return text


@dataclass(frozen=True)
class KeyFile:
    """The user's keys at `path`."""

    path: Path

    def read(self) -> tuple[ApiKey, ...]:
        """The keys, in the order in which they were added; none without a file.

        Raises:
            ConfigError: a line is damaged, or the file cannot be read.
        """
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}",
                remedy=f"make it yours to read (`ls -l {self.path}`), or remove it to begin anew",
            ) from None
        return tuple(self._parse(number, line) for number, line in enumerate(lines, 1) if line)

    def first(self) -> ApiKey | None:
        """The key that dsctl itself uses."""
        keys = self.read()
        return keys[0] if keys else None

    def ensure(self) -> tuple[ApiKey, bool]:
        """The key that dsctl itself uses, and whether it was made just now."""
        with self._alone():
            known = self.first()
            if known is not None:
                return known, False
            made = ApiKey(FIRST, new_secret())
            self._write((made,))
            return made, True

    def add(self, name: str, secret: str | None = None) -> ApiKey:
        """Add a key, a fresh one unless one is brought.

        Raises:
            ConfigError: a bad name or key, or one that is there already.
        """
        made = ApiKey(checked_name(name), checked_secret(secret) if secret else new_secret())
        with self._alone():
            keys = self.read()
            if name in (key.name for key in keys):
                raise ConfigError(
                    f"there is a key {name!r} already",
                    remedy=f"`dsctl key remove {name}` first, or take another name",
                )
            if made.digest in (key.digest for key in keys):
                raise ConfigError("this very key is there already, under another name")
            self._write((*keys, made))
        return made

    def remove(self, name: str) -> ApiKey:
        """Remove a key; from the next request on it opens nothing.

        Raises:
            ConfigError: there is none of that name.
            NotGoodError: it is the last one.
        """
        with self._alone():
            keys = self.read()
            gone = next((key for key in keys if key.name == name), None)
            if gone is None:
                known = ", ".join(key.name for key in keys) or "none"
                raise ConfigError(f"there is no key {name!r}", remedy=f"keys there are: {known}")
            if len(keys) == 1:
                raise NotGoodError(
                    f"{name!r} is the last key; without one nobody can ask, dsctl neither",
                    remedy="add another first: `dsctl key add NAME`",
                )
            self._write(tuple(key for key in keys if key is not gone))
        return gone

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with exclusive(self.path.with_name(f".{self.path.name}.lock"), wait=True):
            yield

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        text = "".join(f"{key.name} {key.secret}\n" for key in keys)
        write_atomically(self.path, text, mode=0o600)

    def _parse(self, number: int, line: str) -> ApiKey:
        name, space, secret = line.partition(" ")
        if not space or not _NAME.fullmatch(name) or not secret or " " in secret:
            raise ConfigError(
                f"{self.path}, line {number}: not `NAME KEY`",
                remedy="remove the line, then `dsctl key add NAME`",
            )
        return ApiKey(name, secret)


def digests(keys: tuple[ApiKey, ...]) -> str:
    """The gateway's file: `NAME SHA256HEX`, one a line."""
    return "".join(f"{key.name} {key.digest}\n" for key in keys)


def publish(keys: tuple[ApiKey, ...], directory: Path) -> None:
    """Write the digests where the gateway reads them; readable for its user, which is not ours."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    write_atomically(directory / "keys", digests(keys), mode=0o644)
