"""Gives page cache of files that are done with back to the kernel (`Action.DROP_PAGE_CACHE`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dropped:
    """What was asked of the kernel: files, their bytes, and those that could not be opened."""

    files: int
    size_bytes: int
    failed: tuple[str, ...] = ()


def drop(paths: Iterable[str]) -> Dropped:
    """Tell the kernel that these files will not be needed (posix_fadvise(2), DONTNEED).

    Clean pages that nobody maps go at once; mapped and dirty ones stay, so nothing is lost and
    nobody is disturbed. A file that is gone or not readable is reported, not an error.
    """
    files = size = 0
    failed = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            failed.append(path)
            continue
        try:
            length = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            failed.append(path)
        else:
            files, size = files + 1, size + length
        finally:
            os.close(descriptor)
    return Dropped(files, size, tuple(failed))
