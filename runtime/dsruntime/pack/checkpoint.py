"""A checkpoint seen from its headers: which tensors make which expert matrix, and their format."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from dsruntime.codec.layout import Matrix
from dsruntime.pack.errors import CheckpointError
from dsruntime.pack.shards import Shard, Tensor, read_shard

INDEX = "model.safetensors.index.json"
_INCOMPLETE = "fetch the checkpoint again (e.g. `hf download` with the same revision), then retry"

#: Official names (`layers.3.ffn.experts.7.w1.weight`, `mtp.0.…`) and those of transformers.
_EXPERT = re.compile(
    r"^(?:model\.)?(?P<layer>(?:layers|mtp)\.\d+)\.(?:ffn|mlp)\.experts\.(?P<expert>\d+)\."
    r"(?P<matrix>w[123]|gate_proj|up_proj|down_proj)\."
    r"(?P<part>weight|scale|weight_scale|weight_scale_inv|weight_scale_2)$"
)
_MATRICES = {"w1": Matrix.W1, "w2": Matrix.W2, "w3": Matrix.W3} | {
    "gate_proj": Matrix.W1, "down_proj": Matrix.W2, "up_proj": Matrix.W3,
}  # fmt: skip
_BYTE = ("U8", "I8", "F8_E8M0")


class SourceFormat(StrEnum):
    """How a matrix is stored in the checkpoint."""

    FP4 = "fp4"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    BF16 = "bf16"


@dataclass(frozen=True)
class MatrixSource:
    """The tensors of one [n, k] expert matrix."""

    format: SourceFormat
    n: int
    k: int
    weight: Tensor
    scale: Tensor | None = None
    scale2: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for t in (self.weight, self.scale, self.scale2) if t is not None)


Key = tuple[str, int, Matrix]


@dataclass(frozen=True)
class Checkpoint:
    """Configuration and shard headers of a checkpoint directory."""

    directory: Path
    config: Mapping[str, Any]
    weight_map: Mapping[str, str]
    shards: tuple[Shard, ...]

    @cached_property
    def experts(self) -> dict[Key, MatrixSource]:
        """Every expert matrix by (layer name, expert, matrix).

        Raises:
            CheckpointError: a format that cannot be packed; names the tensor.
        """
        parts: dict[Key, dict[str, Tensor]] = defaultdict(dict)
        for shard in self.shards:
            for tensor in shard.tensors:
                found = _EXPERT.match(tensor.name)
                if found:
                    part = found["part"].replace("weight_scale_inv", "scale")
                    part = "scale" if part == "weight_scale" else part
                    key = (found["layer"], int(found["expert"]), _MATRICES[found["matrix"]])
                    parts[key][part] = tensor
        return {key: _source(key, found) for key, found in parts.items()}


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read configuration, index and every shard's header.

    Raises:
        CheckpointError: a file is absent, truncated or contradicts another; names it.
    """
    config = _read_json(directory / "config.json")
    index = directory / INDEX
    if index.exists():
        entries = _read_json(index).get("weight_map")
        if not isinstance(entries, dict) or not entries:
            raise CheckpointError(f"{index} has no weight_map", remedy=_INCOMPLETE)
        weight_map = {str(k): str(v) for k, v in entries.items()}
        names = sorted(set(weight_map.values()))
    else:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
        weight_map = {}
    if not names:
        raise CheckpointError(
            f"{directory} has no *.safetensors", remedy="point --checkpoint to a model directory"
        )
    shards = tuple(read_shard(directory / name) for name in names)
    present = {t.name: s.name for s in shards for t in s.tensors}
    for name, shard in weight_map.items():
        if present.get(name) != shard:
            raise CheckpointError(
                f"{index} says that {name} is in {shard}, which does not have it",
                remedy=_INCOMPLETE,
            )
    return Checkpoint(directory, config, weight_map or present, shards)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}",
            remedy="point --checkpoint to a directory with a whole checkpoint",
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}", remedy=_INCOMPLETE) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object", remedy=_INCOMPLETE)
    return value


def _source(key: Key, parts: dict[str, Tensor]) -> MatrixSource:
    weight, scale, scale2 = parts.get("weight"), parts.get("scale"), parts.get("weight_scale_2")
    if weight is None:
        name = next(iter(parts.values())).name
        raise CheckpointError(f"{name} is there without its weight", remedy=_INCOMPLETE)
    if len(weight.shape) != 2:
        raise _unknown(weight, "is not a matrix")
    n, columns = weight.shape
    if weight.dtype in ("U8", "I8", "F4"):
        k = columns if weight.dtype == "F4" else 2 * columns
        if scale is None:
            raise CheckpointError(f"{weight.name} has no scales beside it", remedy=_INCOMPLETE)
        if scale.dtype in _BYTE and scale.shape == (n, k // 32):
            return MatrixSource(SourceFormat.FP4, n, k, weight, scale)
        nvfp4 = scale.dtype == "F8_E4M3" and scale.shape == (n, k // 16)
        if nvfp4 and scale2 is not None and (scale2.dtype, scale2.size_bytes) == ("F32", 4):
            return MatrixSource(SourceFormat.NVFP4, n, k, weight, scale, scale2)
        raise _unknown(scale, f"fits neither FP4 block-32 nor NVFP4 for a {n}x{k} matrix")
    if weight.dtype == "F8_E4M3" and scale is not None:
        blocks = (-(-n // 128), -(-columns // 128))
        if scale.dtype in (*_BYTE, "F32") and scale.shape == blocks:
            return MatrixSource(SourceFormat.FP8, n, columns, weight, scale)
        raise _unknown(scale, f"does not fit FP8 in blocks of 128x128 for a {n}x{columns} matrix")
    if weight.dtype == "BF16":
        return MatrixSource(SourceFormat.BF16, n, columns, weight)
    raise _unknown(weight, "is not a format that can be packed")


def _unknown(tensor: Tensor, what: str) -> CheckpointError:
    shape = "x".join(map(str, tensor.shape))
    return CheckpointError(
        f"{tensor.shard}: {tensor.name} ({tensor.dtype} {shape}) {what}",
        remedy="packs are made from FP4 block-32, FP8 128x128, NVFP4 or BF16 experts",
    )
