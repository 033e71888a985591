"""The tiers of a device, on the CPU as the device, with the kernels in Triton's interpreter.

Run by `test_kernels.py` in a process of its own, like `interpreted_moe.py`. What a card would add
is not here: streams, pinned memory, graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.distributed

from dsruntime.codec.layout import Correction
from dsruntime.experts.compute import routed_sum
from dsruntime.kernels.launch import Tile, Tiles
from dsruntime.kernels.method import DeviceExpertsMethod
from dsruntime.kernels.tiers import DeviceTiers
from dsruntime.pack.build import build
from dsruntime.tiers.settings import TierSettings
from tests.runtime.tiers.conftest import CANARY
from tests.runtime.tiers.test_tier_weights import EXPERTS, HIDDEN, LAYERS, checkpoint, two_bit

ROW = 2
WIDE = Tiles(Tile(256, 8, 16, 4, 3), Tile(256, 32, 16, 4, 3))


@pytest.fixture(params=[Correction.SPLIT, Correction.PLAIN])
def tiers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeviceTiers]:
    """Over a pack of the canary, before any layer is loaded; one rank, without vLLM's groups."""
    monkeypatch.setattr(vllm.distributed, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(vllm.distributed, "get_tensor_model_parallel_world_size", lambda: 1)
    pack = build(CANARY, tmp_path, correction=request.param).directory
    settings = TierSettings(
        experts="w2-resident", pack_dir=pack, pool_gib=1.0, pool_per_step=2, heat=False
    )
    opened = DeviceTiers(settings, str(CANARY), torch.device("cpu"))
    yield opened
    opened.close()


def loaded(tiers: DeviceTiers) -> tuple[DeviceExpertsMethod, Any]:
    """A layer as vLLM makes one: parameters, the loader's calls, then processing."""
    layer = torch.nn.Module()
    layer.layer_name = f"model.layers.{ROW}.ffn.experts"
    layer.swiglu_limit = 10.0
    method = DeviceExpertsMethod(SimpleNamespace(experts_per_token=2), torch.float32, tiers)
    method.create_weights(layer, EXPERTS, HIDDEN, HIDDEN, torch.float32)
    names = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    for name in names:
        parameter = getattr(layer, name)
        assert parameter.numel() == 0
        assert parameter.weight_loader(parameter, torch.zeros(4), name, shard_id="w1", expert_id=0)
    method.process_weights_after_loading(layer)
    assert method._loaded is not None
    method._loaded[1].tiles = WIDE
    return method, layer


class TwoBit:
    """What the checkpoint's experts are at 2 bits."""

    def __init__(self) -> None:
        source = checkpoint(ROW)
        self.count, self.dtype = EXPERTS, torch.float32
        self._matrices = [two_bit(source, expert) for expert in range(EXPERTS)]

    def through_gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return x @ self._matrices[expert][0].T

    def through_down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return x @ self._matrices[expert][1].T


def test_an_expert_goes_from_2_bits_to_the_checkpoints_own_weights_as_it_is_used(
    tiers: DeviceTiers,
) -> None:
    method, layer = loaded(tiers)
    table = tiers.store.pool.slot_table.data_ptr(), tiers.store.pool.address.data_ptr()
    torch.manual_seed(0)
    x, weights = torch.randn(2, HIDDEN), torch.rand(2, 2)
    ids = torch.tensor([[3, 5], [5, -1]], dtype=torch.int32)

    def step() -> torch.Tensor:
        result = method.apply(layer, x, weights, ids, None, None)
        tiers.after_step()
        tiers.store.settle()
        return result

    def same(got: torch.Tensor, source: Any) -> bool:
        want = routed_sum(x, weights, ids, source, 10.0)
        return float((got - want).norm() / want.norm()) < 1e-5

    before_the_pool = method.apply(layer, x, weights, ids, None, None)
    assert same(before_the_pool, TwoBit())
    said = tiers.allocate_pool()
    assert f"correction pool of {LAYERS * EXPERTS} slots" in said
    assert same(step(), TwoBit()), "nobody has been promoted yet"
    step()  # the counts of the first step are decided on
    assert tiers.store.counters.promotions == 2
    assert same(step(), checkpoint(ROW))
    assert tiers.store.counters.uses == 2 * 3, "a step behind"
    assert (tiers.store.pool.slot_table.data_ptr(), tiers.store.pool.address.data_ptr()) == table
    assert tiers.store.pool.slot_table.numpy().tolist() == tiers.store.pool.table.tolist()


def test_what_warm_up_routed_makes_nobody_hot(tiers: DeviceTiers) -> None:
    method, layer = loaded(tiers)
    ids = torch.tensor([[0, 1]], dtype=torch.int32)
    method.apply(layer, torch.randn(1, HIDDEN), torch.rand(1, 2), ids, None, None)
    tiers.allocate_pool()
    tiers.after_step()
    tiers.after_step()
    assert tiers.store.counters.uses == 0
    assert not tiers.store.pool.visible().any()


def test_a_victims_slot_goes_to_another_expert_and_both_tables_say_so(tiers: DeviceTiers) -> None:
    loaded(tiers)
    pool = tiers.store.pool
    tiers.store.allocate(1)
    rows = [np.empty(pool.slot_bytes, np.uint8) for _ in range(2)]
    for expert, row in zip((1, 4), rows, strict=True):
        tiers._reader.correction(ROW, expert, out=row)
    first, second = ROW * EXPERTS + 1, ROW * EXPERTS + 4
    assert tiers.store.preload([first]) == 1
    assert np.array_equal(pool.slot(ROW, 1), rows[0])
    staging = pool.reserve(second, evict=first)
    assert pool.slot_table[ROW, 1] == -1, "the victim is read while its slot is written"
    staging[:] = rows[1]
    pool.deliver(second)
    assert pool.slot_table[ROW, 4] == -1, "seen before the step ends"
    pool.publish(second)
    assert np.array_equal(pool.slot(ROW, 4), rows[1])
    assert pool.slot_table.numpy().tolist() == pool.table.tolist()


def test_a_layer_that_was_never_loaded_says_so(tiers: DeviceTiers) -> None:
    method = DeviceExpertsMethod(SimpleNamespace(experts_per_token=2), torch.float32, tiers)
    layer = SimpleNamespace(layer_name="model.layers.0.ffn.experts")
    with pytest.raises(RuntimeError, match=r"model\.layers\.0\.ffn\.experts: .* not been loaded"):
        method.apply(layer, torch.zeros(1, 4), torch.zeros(1, 1), torch.zeros(1, 1), None, None)
