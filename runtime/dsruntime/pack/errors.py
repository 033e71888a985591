"""What can go wrong with packs, in one line each, with what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path


class PackError(Exception):
    """Base of the errors here. `usage` ones are bad input, the others say that a thing is bad."""

    kind = "pack"
    usage = False

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class CheckpointError(PackError):
    """The checkpoint is not whole, or not one whose experts can be packed."""

    kind = "checkpoint"
    usage = True


class StaleError(PackError):
    """The pack was made from another checkpoint, or for another geometry."""

    kind = "stale"


class CorruptError(PackError):
    """Bytes of the pack are not those that were written."""

    kind = "corrupt"


class NoSpaceError(PackError):
    """The disk cannot hold the pack."""

    kind = "no-space"


class UnusableError(PackError):
    """A directory or file that cannot be used as asked: unwritable, absent, in use."""

    kind = "unusable"
    usage = True


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_failed(error: OSError, path: Path, *, resumable: bool = True) -> PackError:
    """The error of a failed write to `path`, told from its errno."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return NoSpaceError(
            f"no room to write {path}: {reason}",
            remedy="free some space (or raise the quota or file size limit) and run it again"
            + ("; it goes on where it stopped" if resumable else ""),
        )
    return UnusableError(
        f"{path} cannot be written: {reason}",
        remedy=f"make it writable for you (`ls -ld {path.parent}`), or choose another directory",
    )
