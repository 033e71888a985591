"""Rows made straight from the checkpoint are the rows of its pack, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsruntime.codec.layout import Correction
from dsruntime.pack.build import build
from dsruntime.pack.direct import CheckpointRows
from dsruntime.pack.errors import PackError
from dsruntime.pack.plan import Kind
from dsruntime.pack.reader import PackReader
from tests.runtime.pack.support import make_checkpoint


@pytest.mark.parametrize("source", ["fp4", "fp8", "nvfp4", "bf16"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("coding", [Correction.SPLIT, Correction.PLAIN])
def test_every_row_of_every_rank(
    tmp_path: Path, source: str, ranks: int, coding: Correction
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", source=source)
    pack = build(checkpoint, tmp_path, tensor_parallel=ranks, correction=coding).directory
    kinds: tuple[Kind, ...] = ("base", "correction")
    for rank in range(ranks):
        direct = CheckpointRows(checkpoint, rank, ranks, coding)
        with PackReader(pack, rank) as reader:
            assert direct.geometry == reader.geometry
            for layer in range(len(reader.geometry.layers)):
                for expert in range(reader.geometry.experts):
                    for kind in kinds:
                        assert direct.layout(kind) == reader.layout(kind)
                        made = getattr(direct, kind)(layer, expert)
                        assert (made == getattr(reader, kind)(layer, expert)).all()


def test_a_checkpoint_cut_short_is_named(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    rows = CheckpointRows(checkpoint, 0, 1)
    shard = checkpoint / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(PackError, match="model-00002"):
        rows.base(1, 2)
