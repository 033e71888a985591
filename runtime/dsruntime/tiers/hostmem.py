"""Host memory for rows on their way to the device: pinned, locked, or as the system gives it."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Kind = Literal["pinned", "locked", "pageable"]


@dataclass(frozen=True)
class HostMemory:
    """[rows, row_bytes] uint8, and what keeps the system from paging it out.

    Attributes:
        kind: ``pinned``: page-locked by the GPU's driver, which copies from it at full speed.
            ``locked``: kept in memory by mlock. ``pageable``: neither; under memory pressure a row
            here may be slower than one in the pack.
        why: for ``pageable``, what refused the lock.
    """

    rows: Bytes
    kind: Kind
    why: str = ""


def host_memory(rows: int, row_bytes: int) -> HostMemory:
    """Memory of that size: pinned where there is a GPU, else locked if the limits allow it.

    Raises:
        MemoryError: the system does not give it.
    """
    size = rows * row_bytes
    if not size:
        return HostMemory(np.empty((rows, row_bytes), np.uint8), "pageable", "empty")
    if torch.cuda.is_available():
        pinned = torch.empty(rows, row_bytes, dtype=torch.uint8, pin_memory=True)
        return HostMemory(pinned.numpy(), "pinned")
    try:
        region = mmap.mmap(-1, size)  # page-aligned, and not from the heap: mlock takes whole pages
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error.strerror}") from None
    memory = np.frombuffer(region, np.uint8).reshape(rows, row_bytes)
    refused = _lock(memory)
    if refused:
        memory.fill(0)  # taken now and not bit by bit, so that whoever asks next sees what is left
        return HostMemory(memory, "pageable", refused)
    return HostMemory(memory, "locked")


def _lock(memory: Bytes) -> str:
    """Why the lock was refused; empty where it was not."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(memory.ctypes.data)
    if libc.mlock(address, ctypes.c_size_t(memory.nbytes)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
