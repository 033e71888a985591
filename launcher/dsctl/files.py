"""Files that are whole or absent: atomic writes and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dsctl.errors import ConfigError


def read_text(path: Path) -> str:
    """A whole text file (UTF-8).

    Raises:
        ConfigError: it cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path}: not text", remedy="give the file that was meant; this one is damaged"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", remedy="check the path") from None


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write, sync, rename: a reader sees the old text or the new, never half of either.

    Raises:
        ConfigError: the disk is full or read-only, or the directory is not ours to write.
    """
    try:
        _write_atomically(path, text, mode)
    except OSError as error:
        raise _unwritable(path, error) from None


def _write_atomically(path: Path, text: str, mode: int) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).chmod(mode)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written: {error.strerror or error}", remedy=_remedy(path.parent, error)
    )


def _remedy(directory: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free some space (`df {directory}`)"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"make the directory first: `mkdir -p {directory}`"
    if error.errno == errno.EISDIR:
        return "name a file, not a directory"
    if error.errno == errno.EROFS:
        return f"{directory} lies on a file system mounted read-only; choose another place"
    return f"make {directory} writable for you (`ls -ld {directory}`)"


class LockBusyError(Exception):
    """Another process holds the lock; `holder` is what it wrote into it."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def exclusive(
    path: Path,
    *,
    holder: str = "",
    wait: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold an exclusive lock on `path` (kept on disk; the kernel frees it when we die).

    With `wait` blocks until it is free, calling `on_wait(holder)` once before; without, raises
    LockBusyError.
    """
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = file.read()
            if not wait:
                raise LockBusyError(text) from None
            if on_wait is not None:
                on_wait(text)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        try:
            os.write(
                file.fileno(), holder.encode()
            )  # unbuffered: a full disk fails here, not later
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def _opened(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except OSError as error:
        raise _unwritable(path, error) from None
