"""Safetensors shards, read by header and position: no mapping, one tensor in memory at a time.

Format: 8 bytes little-endian header length, a JSON header, the data
(https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsruntime.pack.digests import digest
from dsruntime.pack.errors import CheckpointError

_BITS = {
    "F4": 4, "U8": 8, "I8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "BF16": 16, "F16": 16, "I16": 16, "U16": 16, "F32": 32, "I32": 32, "U32": 32,
    "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000
_FETCH_AGAIN = "fetch that shard again (e.g. `hf download` with the same revision), then retry"


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies: `offset` from the start of the shard `shard`."""

    name: str
    shard: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint; tensors in order of offset."""

    name: str
    path: Path
    size_bytes: int
    header_digest: str
    seen: str
    tensors: tuple[Tensor, ...]


def read_shard(path: Path) -> Shard:
    """Read and check the header.

    Raises:
        CheckpointError: absent, truncated, or not safetensors; names the shard.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(status.st_size - 8, _LONGEST_HEADER):
                raise CheckpointError(
                    f"checkpoint shard {path} is truncated or not safetensors: "
                    f"{status.st_size} bytes, header of {length}",
                    remedy=_FETCH_AGAIN,
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint shard {path} cannot be read: {error.strerror}", remedy=_FETCH_AGAIN
        ) from None
    tensors = _tensors(path, text, data_at=8 + length)
    end = tensors[-1].offset + tensors[-1].size_bytes if tensors else 8 + length
    if status.st_size != end:
        wrong = "is truncated" if status.st_size < end else "has more bytes than its header says"
        raise CheckpointError(
            f"checkpoint shard {path} {wrong}: {status.st_size} bytes, expected {end}",
            remedy=_FETCH_AGAIN,
        )
    header = digest(head + text)
    seen = f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{header[:8]}"
    return Shard(path.name, path, status.st_size, header, seen, tensors)


def _tensors(path: Path, text: bytes, *, data_at: int) -> tuple[Tensor, ...]:
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        found = [
            Tensor(
                name,
                path.name,
                str(entry["dtype"]),
                tuple(int(n) for n in entry["shape"]),
                data_at + int(entry["data_offsets"][0]),
                int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(
            f"checkpoint shard {path} has a broken header", remedy=_FETCH_AGAIN
        ) from None
    found.sort(key=lambda t: (t.offset, t.size_bytes))
    at = data_at
    for tensor in found:
        bits = _BITS.get(tensor.dtype)
        wanted = math.prod(tensor.shape) * bits // 8 if bits else tensor.size_bytes
        if tensor.offset != at or tensor.size_bytes != wanted:
            raise CheckpointError(
                f"checkpoint shard {path}: header entry {tensor.name} does not fit its data",
                remedy=_FETCH_AGAIN,
            )
        at += tensor.size_bytes
    return tuple(found)
