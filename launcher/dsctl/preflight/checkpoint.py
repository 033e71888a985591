"""Is a checkpoint whole: its index, every shard's header against the file's size, its tensors."""

from __future__ import annotations

import errno
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
_LARGEST_HEADER_BYTES = 100_000_000
_DRAFT_PREFIX = "mtp."


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and the files to fetch again."""

    text: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What was found. `tensors` maps each tensor's name to its shard."""

    config: dict[str, Any]
    tensors: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def draft_tensors(self) -> tuple[str, ...]:
        """Names of the draft's tensors."""
        return tuple(name for name in self.tensors if name.startswith(_DRAFT_PREFIX))


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as a mapping.

    Raises:
        ValueError: it cannot be read, or is no mapping.
    """
    try:
        config = json.loads((directory / "config.json").read_text())
    except OSError as error:
        raise ValueError(f"config.json cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"config.json, line {error.lineno}: {error.msg}") from None
    if not isinstance(config, dict):
        raise ValueError("config.json is not a mapping")
    return config


def inspect(directory: Path) -> Inspection:
    """Look at every shard's header; no weight is read.

    Raises:
        ValueError: config.json or the index cannot be read.
    """
    config = read_config(directory)
    weight_map = _weight_map(directory)
    names = sorted(set(weight_map.values())) or sorted(
        p.name for p in directory.glob("*.safetensors")
    )
    if not names:
        return Inspection(config, problems=(Problem("there is no *.safetensors file"),))
    with ThreadPoolExecutor(8) as pool:
        shards = list(pool.map(lambda name: _read_shard(directory / name), names))
    problems = [shard for shard in shards if isinstance(shard, Problem)]
    tensors: dict[str, str] = {}
    size = 0
    for name, shard in zip(names, shards, strict=True):
        if not isinstance(shard, Problem):
            tensors |= dict.fromkeys(shard[0], name)
            size += shard[1]
    broken = {file for p in problems for file in p.files}
    lost = [t for t, s in weight_map.items() if s not in broken and tensors.get(t) != s]
    if lost:
        where = weight_map[lost[0]]
        problems.append(
            Problem(f"the index names {lost[0]} in {where}, which does not hold it", (where,))
        )
    return Inspection(config, tensors, size, tuple(problems))


def _weight_map(directory: Path) -> dict[str, str]:
    path = directory / INDEX
    try:
        weight_map = json.loads(path.read_text())["weight_map"]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"{INDEX} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{INDEX} is not an index: {error}") from None
    if not isinstance(weight_map, dict):
        raise ValueError(f"{INDEX}: key 'weight_map' is not a mapping")
    return {str(k): str(v) for k, v in weight_map.items()}


def _read_shard(path: Path) -> tuple[list[str], int] | Problem:
    """Names of its tensors and its size, if the size is the one its header demands."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise OSError(errno.EINVAL, "not a regular file")
        with path.open("rb") as file:
            size = path.stat().st_size
            length = struct.unpack("<Q", file.read(8))[0]
            if length > min(size, _LARGEST_HEADER_BYTES):
                return Problem(f"{path.name} is cut off inside its header", (path.name,))
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((e["data_offsets"][1] for e in header.values()), default=0)
    except FileNotFoundError:
        return Problem(f"{path.name} is missing", (path.name,))
    except OSError as error:
        return Problem(f"{path.name} cannot be read: {error.strerror}", (path.name,))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return Problem(f"{path.name} is no safetensors file", (path.name,))
    if size != end:
        return Problem(f"{path.name} has {size:,} bytes, its header demands {end:,}", (path.name,))
    return list(header), size
