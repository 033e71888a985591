"""What a checkpoint holds, from the headers of its safetensors files; no weight is read."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsctl.errors import ConfigError

#: safetensors allows no longer header; a larger number means the file is something else.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class Stored:
    """One tensor as stored: its type's name, its shape, its bytes, its file."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str


def read_headers(checkpoint: Path) -> dict[str, Stored]:
    """Every tensor of every `*.safetensors` file of a checkpoint, by name; empty without files.

    Raises:
        ConfigError: a file is no safetensors file, or shorter than its header says.
    """
    found: dict[str, Stored] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        found.update(read_header(path))
    return found


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one file.

    Raises:
        ConfigError: names the file and what is wrong with it.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise OSError(errno.EINVAL, "not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(size, _MAX_HEADER_BYTES):
                raise _broken(path, "its header is longer than the file")
            header = json.loads(file.read(length))
        tensors = {name: _stored(entry, path) for name, entry in header.items() if _real(name)}
    except OSError as error:
        raise _broken(path, f"it cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _broken(path, "its header is not one of safetensors") from None
    end = 8 + length + sum(t.nbytes for t in tensors.values())
    if end > size:
        raise _broken(path, f"it has {size:,} bytes where its header promises {end:,}")
    return tensors


def _real(name: str) -> bool:
    return name != "__metadata__"


def _stored(entry: dict[str, Any], path: Path) -> Stored:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(n) for n in entry["shape"])
    return Stored(str(entry["dtype"]), shape, end - begin, path.name)


def _broken(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged: {why}", remedy=f"download {path.name} again, then try once more"
    )
