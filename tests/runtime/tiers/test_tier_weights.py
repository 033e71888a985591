"""Experts from two tiers: exactly the checkpoint with a slot, exactly the 2-bit code without."""

from __future__ import annotations

import itertools
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from dsruntime.codec.fp4 import decode_base, decode_fp4
from dsruntime.codec.layout import Correction
from dsruntime.experts.compute import routed_sum
from dsruntime.experts.weights import Fp4Weights
from dsruntime.pack.errors import StaleError
from dsruntime.pack.reader import PackReader
from dsruntime.tiers.decode import base_into, fp4_into
from dsruntime.tiers.policy import Fixed, Frequency, Move, Need
from dsruntime.tiers.pool import CorrectionPool
from dsruntime.tiers.store import TierStore
from tests.runtime.tiers.conftest import CANARY

LAYERS, EXPERTS, HIDDEN, INNER = 4, 8, 256, 256
CODINGS = (Correction.SPLIT, Correction.PLAIN)

Open = Callable[..., TierStore]  # type: ignore[type-arg]


class SlowReader(PackReader):
    """Reads corrections only when it may, in two halves with garbage in between."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may_finish = threading.Event()
        self.half_way = threading.Event()

    def correction(self, layer: int, expert: int, out: np.ndarray | None = None) -> np.ndarray:
        assert out is not None
        out[: len(out) // 2] = 0xA5
        self.half_way.set()
        self.may_finish.wait(10)
        return super().correction(layer, expert, out)


@pytest.fixture
def opened(canary_packs: dict[Correction, Path]) -> Iterator[Open]:
    """Opens a store over a canary pack, and closes it after the test."""
    stores: list[tuple[TierStore, PackReader]] = []  # type: ignore[type-arg]

    def open_store(  # type: ignore[no-untyped-def]
        coding: Correction = Correction.SPLIT,
        *,
        policy=None,
        dtype: torch.dtype = torch.float32,
        reader: PackReader | None = None,
        **more: Any,
    ):
        reader = reader or PackReader(canary_packs[coding])
        store = TierStore(reader, policy or Fixed(), dtype, **more)
        stores.append((store, reader))
        return store

    yield open_store
    for store, reader in stores:
        store.close()
        reader.close()


def checkpoint(layer: int, dtype: torch.dtype = torch.float32) -> Fp4Weights:
    """A canary layer's experts straight from its checkpoint."""
    with safe_open(str(CANARY / "model.safetensors"), "pt") as file:

        def stacked(names: str, part: str) -> torch.Tensor:
            return torch.stack(
                [
                    torch.cat(
                        [
                            file.get_tensor(f"layers.{layer}.ffn.experts.{e}.{n}.{part}").view(
                                torch.uint8
                            )
                            for n in names.split()
                        ]
                    )
                    for e in range(EXPERTS)
                ]
            )

        return Fp4Weights(
            stacked("w1 w3", "weight"),
            stacked("w1 w3", "scale"),
            stacked("w2", "weight"),
            stacked("w2", "scale"),
            dtype,
        )


def two_bit(source: Fp4Weights, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The 2-bit values of an expert, weight by weight from the definition."""
    full = Fp4Weights(source.w13, source.w13_scale, source.w2, source.w2_scale, torch.float32)
    found = []
    for matrix, scales in (
        (full.gate_up(expert), source.w13_scale[expert]),
        (full.down(expert), source.w2_scale[expert]),
    ):
        unit = torch.pow(2.0, scales.float() - 127).repeat_interleave(32, dim=1)
        level = torch.where(matrix.abs() > 2 * unit, 4.0, 1.0) * unit
        found.append(torch.copysign(level, matrix).to(source.dtype))
    return found[0], found[1]


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    kind = torch.int32 if got.dtype == torch.float32 else torch.int16
    return got.dtype == want.dtype and torch.equal(got.view(kind), want.view(kind))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coding", CODINGS)
def test_with_every_expert_corrected_the_matrices_are_the_checkpoints_bit_for_bit(
    opened: Open, coding: Correction, dtype: torch.dtype
) -> None:
    store = opened(coding, dtype=dtype)
    layers = [store.layer(number) for number in range(LAYERS)]
    store.allocate(LAYERS * EXPERTS)
    assert store.preload(range(LAYERS * EXPERTS)) == LAYERS * EXPERTS
    for number, weights in enumerate(layers):
        source = checkpoint(number, dtype)
        assert weights.count == source.count
        for expert in range(EXPERTS):
            assert same_bits(weights.gate_up(expert), source.gate_up(expert))
            assert same_bits(weights.down(expert), source.down(expert))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coding", list(Correction))
def test_with_none_corrected_the_matrices_are_the_2_bit_codes_values(
    opened: Open, coding: Correction, dtype: torch.dtype
) -> None:
    store = opened(coding, dtype=dtype)
    for number in range(LAYERS):
        weights, source = store.layer(number), checkpoint(number, dtype)
        for expert in range(EXPERTS):
            gate_up, down = two_bit(source, expert)
            assert same_bits(weights.gate_up(expert), gate_up)
            assert same_bits(weights.down(expert), down)


@pytest.mark.parametrize(("tokens", "apart"), [(96, 0.0), (3, 1e-5)])
def test_the_routed_sum_over_corrected_experts_is_that_of_the_fp4_method(
    opened: Open, tokens: int, apart: float
) -> None:
    """Many tokens share a matrix, the same in both; few are multiplied as codes, in their order."""
    store = opened()
    weights, source = store.layer(2), checkpoint(2)
    store.allocate(LAYERS * EXPERTS)
    store.preload(range(LAYERS * EXPERTS))
    torch.manual_seed(0)
    x, gate = torch.randn(tokens, HIDDEN), torch.rand(tokens, 2)
    ids = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(tokens)])
    ids[1] = -1
    got = routed_sum(x, gate, ids, weights, 10.0)
    assert float((got - routed_sum(x, gate, ids, source, 10.0)).abs().max()) <= apart
    assert not got[1].any()


@given(
    base=st.binary(min_size=16, max_size=16),
    fp4=st.binary(min_size=32, max_size=32),
    scales=st.lists(st.integers(0, 254), min_size=2, max_size=2),
)
def test_any_codes_under_any_scale_decode_as_the_codec_says(
    base: bytes, fp4: bytes, scales: list[int]
) -> None:
    e8m0 = np.array([scales], np.uint8)
    for raw, into, codec in ((base, base_into, decode_base), (fp4, fp4_into, decode_fp4)):
        codes = np.frombuffer(bytearray(raw), np.uint8)[None]
        exact = torch.from_numpy(codec(codes, e8m0))
        for dtype in (torch.float32, torch.bfloat16):
            got = into(codes, e8m0, torch.empty(1, 64, dtype=dtype))
            assert same_bits(got, exact.to(dtype))


def test_a_slot_is_invisible_while_it_is_written_and_until_the_step_ends(
    opened: Open, canary_packs: dict[Correction, Path]
) -> None:
    reader = SlowReader(canary_packs[Correction.SPLIT])
    store = opened(policy=Frequency(), reader=reader)
    weights, source = store.layer(1), checkpoint(1)
    base, full = two_bit(source, 3)[0], source.gate_up(3)
    store.allocate(1)
    store.record(1, np.array([[3, -1]]))
    assert store.step() == (Move(EXPERTS + 3),)
    assert reader.half_way.wait(10)
    assert same_bits(weights.gate_up(3), base), "a half-written slot was read"
    store.record(1, np.array([[3, -1]]))
    assert store.step() == (), "the same expert is promoted twice"
    reader.may_finish.set()
    store._loads[EXPERTS + 3].result(10)
    assert same_bits(weights.gate_up(3), base), "the pool changed within a step"
    store.step()
    assert same_bits(weights.gate_up(3), full)


@pytest.mark.parametrize("coding", CODINGS)
def test_under_constant_promotion_and_eviction_every_matrix_is_one_tiers_or_the_others(
    opened: Open, coding: Correction
) -> None:
    restless = Frequency(half_life_steps=1, hysteresis=0, margin=0, stay_steps=0)
    store = opened(coding, policy=restless)
    layers = [store.layer(number) for number in range(LAYERS)]
    sources = [checkpoint(number) for number in range(LAYERS)]
    expected = {
        (number, expert): (two_bit(source, expert), (source.gate_up(expert), source.down(expert)))
        for number, source in enumerate(sources)
        for expert in range(EXPERTS)
    }
    store.allocate(6)
    random = np.random.default_rng(0)
    seen = {False: 0, True: 0}
    for _ in range(150):
        for number, weights in enumerate(layers):
            ids = random.integers(0, EXPERTS, (2, 2))
            store.record(number, ids)
            for expert in np.unique(ids).tolist():
                corrected = store.pool.slot(number, expert) is not None
                seen[corrected] += 1
                want = expected[number, expert][corrected]
                assert same_bits(weights.gate_up(expert), want[0])
                assert same_bits(weights.down(expert), want[1])
        store.step()
    assert store.counters.evictions > 20
    assert min(seen.values()) > 20
    assert store.counters.uses == 150 * LAYERS * 4
    assert 0 < store.counters.hits < store.counters.uses


def test_a_damaged_correction_leaves_its_expert_at_2_bits_and_says_which(
    opened: Open,
    canary_packs: dict[Correction, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pack = shutil.copytree(canary_packs[Correction.SPLIT], tmp_path / "pack")
    path = pack / "correction.0of1.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    store = opened(policy=Frequency(), reader=PackReader(pack))
    weights, source = store.layer(0), checkpoint(0)
    store.allocate(1)
    with caplog.at_level(logging.WARNING, "dsruntime.tiers"):
        store.record(0, np.array([[0, 0, 0, 1]]))
        assert store.step() == (Move(0),)
        store.settle()
    assert "layers.0 expert 0 stays at 2 bits" in caplog.text
    assert "checksum" in caplog.text
    assert same_bits(weights.gate_up(0), two_bit(source, 0)[0])
    store.record(0, np.array([[0, 0, 0, 1]]))
    assert store.step() == (Move(1),), "the slot is lost, or the bad row is tried for ever"
    store.settle()
    assert same_bits(weights.gate_up(1), source.gate_up(1))
    assert (store.counters.failures, store.counters.promotions) == (1, 1)


def test_a_pack_without_corrections_refuses_slots_with_a_remedy(opened: Open) -> None:
    store = opened(Correction.NONE)
    store.allocate(0)
    with pytest.raises(StaleError, match="no correction file") as error:
        opened(Correction.NONE).allocate(1)
    assert "--correction" in error.value.remedy


def test_the_pool_refuses_what_would_give_one_slot_to_two() -> None:
    pool = CorrectionPool(1, 4, 8)
    pool.allocate(1)
    with pytest.raises(RuntimeError, match="already"):
        pool.allocate(2)
    pool.reserve(0)
    for refused in (lambda: pool.reserve(0), lambda: pool.reserve(1), lambda: pool.reserve(1, 0)):
        with pytest.raises(ValueError, match="slot"):
            refused()
    pool.publish(0)
    with pytest.raises(ValueError, match="has a slot"):
        pool.reserve(0)
    pool.reserve(1, evict=0)
    assert pool.slot(0, 0) is None
    pool.abandon(1)
    assert pool.view().free == 1


def test_the_table_that_kernels_hold_stays_where_it_was() -> None:
    pool = CorrectionPool(2, 4, 8)
    address = pool.table.ctypes.data
    pool.allocate(3)
    for key in range(3):
        pool.reserve(key)
        pool.publish(key)
    assert pool.table.ctypes.data == address
    assert (pool.table.reshape(-1) >= 0).tolist() == [True] * 3 + [False] * 5


def test_preloading_stops_at_the_last_slot(opened: Open) -> None:
    store = opened()
    store.allocate(3)
    assert store.preload(itertools.chain([5, 9, 30, 2, 1])) == 3
    assert np.flatnonzero(store.pool.visible()).tolist() == [5, 9, 30]


def test_importing_the_tiers_imports_no_numba() -> None:
    program = (
        "import sys, dsruntime.tiers.store, dsruntime.tiers.weights\n"
        "assert 'numba' not in sys.modules and 'vllm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_prompt_waits_for_its_experts_and_leaves_the_hotter_half_alone(opened: Open) -> None:
    store = opened(policy=Need(), ensure_from=4)
    weights, source = store.layer(2), checkpoint(2)
    store.allocate(4)
    hot = [EXPERTS * 2 + 6, EXPERTS * 2 + 7]
    heat = np.zeros(LAYERS * EXPERTS)
    heat[hot] = 9
    heat[:2] = 1
    assert store.warm(heat) == 4
    store.ensure(2, np.array([[0, 1]] * 3))
    assert store.pool.slot(2, 0) is None, "three tokens are no prompt here"
    store.ensure(2, np.array([[0, 1]] * 3 + [[2, 0]]))
    assert same_bits(weights.gate_up(0), source.gate_up(0))
    assert same_bits(weights.gate_up(1), source.gate_up(1))
    assert store.pool.slot(2, 2) is None, "more came in than the colder half has room for"
    assert all(store.pool.visible()[hot])
