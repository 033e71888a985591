"""Files that are whole or absent: positioned reads and writes, atomic small files, locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_at(descriptor: int, data: Any, offset: int) -> None:
    """Write all of a contiguous buffer at `offset`."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def read_at(descriptor: int, into: Any, offset: int) -> int:
    """Fill a contiguous writable buffer from `offset`; bytes read, fewer only at the end."""
    view = memoryview(into).cast("B")
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_atomically(path: Path, text: str) -> None:
    """Write, sync, rename, sync the directory: readers see the old text or the new."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_at(descriptor, text.encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in the directory last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path` alone; if another has it, say so once (its pid) and wait.

    The kernel frees the lock when the holder dies, however it dies.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(os.pread(descriptor, 64, 0).decode(errors="replace").strip())
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        write_at(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether someone holds a lock, shared or exclusive, on an existing file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
