"""Routed experts: FP4 codes, the math, the operator and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.experts import compute, fp4, operator
from dsruntime.experts.weights import Budget, ByMatrix, Fp4Weights, Kept
from tests.runtime.support import float64
from tests.runtime.support.quantize import fp4_blocks

HIDDEN, INNER, E = 64, 32, 6


def layer(
    seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Fp4Weights, np.ndarray, np.ndarray]:
    """FP4 experts, and the float64 values of their w13 and w2, stacked by expert."""
    generator = torch.Generator().manual_seed(seed)
    parts: dict[str, list[torch.Tensor]] = {"w13": [], "s13": [], "w2": [], "s2": []}
    values13, values2 = [], []
    for _ in range(E):
        codes, scales, values = fp4_blocks(torch.randn(2 * INNER, HIDDEN, generator=generator))
        parts["w13"].append(codes.view(torch.uint8))
        parts["s13"].append(scales.view(torch.uint8))
        values13.append(values.double().numpy())
        codes, scales, values = fp4_blocks(torch.randn(HIDDEN, INNER, generator=generator))
        parts["w2"].append(codes.view(torch.uint8))
        parts["s2"].append(scales.view(torch.uint8))
        values2.append(values.double().numpy())
    stacked = [torch.stack(parts[key]) for key in ("w13", "s13", "w2", "s2")]
    return Fp4Weights(*stacked, dtype), np.stack(values13), np.stack(values2)


def reference(x, weights, ids, w13, w2, limit):  # type: ignore[no-untyped-def]
    out = np.zeros((x.shape[0], HIDDEN))
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token].tolist(), ids[token].tolist(), strict=True):
            if expert < 0:
                continue
            both = w13[expert] @ x[token].double().numpy()
            hidden = float64.swiglu(both[:INNER], both[INNER:], limit)
            out[token] += weight * (w2[expert] @ hidden)
    return out


def test_codes_decode_to_the_values_they_mean_exactly() -> None:
    codes, scales, values = fp4_blocks(torch.randn(48, 96) * torch.logspace(-6, 6, 48)[:, None])
    for dtype in (torch.float32, torch.bfloat16):
        decoded = fp4.decode(codes.view(torch.uint8), scales.view(torch.uint8), dtype)
        assert torch.equal(decoded.float(), values)


def test_all_sixteen_codes_low_nibble_first() -> None:
    codes = torch.arange(16, dtype=torch.uint8).view(8, 2)
    packed = (codes[:, 0] | (codes[:, 1] << 4)).repeat(2).view(1, 16)
    row = fp4.decode(packed, torch.tensor([[128]], dtype=torch.uint8), torch.float32)[0]
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert row[:16].tolist() == [2 * v for v in magnitudes] + [-2 * v for v in magnitudes]


@pytest.mark.parametrize("limit", [None, 0.5, 10.0])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_the_sum_over_a_tokens_experts_with_the_clamp_before_the_activation(tokens, limit) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(tokens)
    weights, w13, w2 = layer()
    x = torch.randn(tokens, HIDDEN)
    ids = torch.stack([torch.randperm(E)[:3] for _ in range(tokens)]).to(torch.int32)
    gate = torch.rand(tokens, 3)
    got = compute.routed_sum(x, gate, ids, weights, limit)
    want = reference(x, gate, ids, w13, w2, limit)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-3)


@given(
    ids=st.lists(st.lists(st.integers(-1, E - 1), min_size=2, max_size=2), min_size=1, max_size=9)
)
@settings(max_examples=50, deadline=None)
def test_padding_ids_contribute_nothing_wherever_they_stand(ids: list[list[int]]) -> None:
    weights, w13, w2 = layer()
    x = torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(1))
    gate = torch.ones(len(ids), 2)
    got = compute.routed_sum(x, gate, torch.tensor(ids, dtype=torch.int32), weights, 10.0)
    want = reference(x, gate, torch.tensor(ids), w13, w2, 10.0)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-3)


def test_the_input_is_not_changed() -> None:
    weights, _, _ = layer()
    x = torch.randn(4, HIDDEN)
    before = x.clone()
    compute.routed_sum(x, torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int32), weights, 10.0)
    assert torch.equal(x, before)


def test_ranks_that_hold_different_experts_sum_to_the_whole() -> None:
    torch.manual_seed(0)
    weights, _, _ = layer()
    x, gate = torch.randn(5, HIDDEN), torch.rand(5, 3)
    ids = torch.stack([torch.randperm(E)[:3] for _ in range(5)]).to(torch.int32)
    ids[2, 1] = -1
    whole = compute.routed_sum(x, gate, ids, weights, 10.0)
    total = torch.zeros_like(whole)
    for rank in range(2):
        mine = slice(rank * 3, rank * 3 + 3)
        local = Fp4Weights(
            weights.w13[mine], weights.w13_scale[mine], weights.w2[mine], weights.w2_scale[mine],
            weights.dtype,
        )  # fmt: skip
        expert_map = torch.full((E,), -1, dtype=torch.int32)
        expert_map[mine] = torch.arange(3, dtype=torch.int32)
        held = operator.LayerExperts(local, 10.0, lambda table=expert_map: table)  # type: ignore[misc]
        operator.attach("rank", held)
        total += torch.ops.dsruntime.routed_experts(x, gate, ids, "rank")
    torch.testing.assert_close(total, whole, atol=1e-4, rtol=1e-4)


def test_ranks_that_hold_slices_of_every_expert_sum_to_the_whole() -> None:
    torch.manual_seed(0)
    weights, _, _ = layer()
    x, gate = torch.randn(5, HIDDEN), torch.rand(5, 2)
    ids = torch.stack([torch.randperm(E)[:2] for _ in range(5)]).to(torch.int32)

    class Slice(ByMatrix):
        """Every second gate and up row, and the down columns that go with them."""

        count, dtype = E, torch.float32

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def gate_up(self, expert: int) -> torch.Tensor:
            gate, up = weights.gate_up(expert).chunk(2)
            return torch.cat([gate[self.rank :: 2], up[self.rank :: 2]])

        def down(self, expert: int) -> torch.Tensor:
            return weights.down(expert)[:, self.rank :: 2]

    parts = [compute.routed_sum(x, gate, ids, Slice(rank), 1.0) for rank in range(2)]
    whole = compute.routed_sum(x, gate, ids, weights, 1.0)
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-4, rtol=1e-4)


def test_the_operator_is_opaque_to_a_compiler_and_knows_its_shape() -> None:
    weights, _, _ = layer()
    operator.attach("traced", operator.LayerExperts(weights, 10.0, lambda: None))
    x, gate = torch.randn(3, HIDDEN), torch.ones(3, 2)
    ids = torch.tensor([[0, 1], [2, -1], [5, 3]], dtype=torch.int32)
    torch.library.opcheck(torch.ops.dsruntime.routed_experts, (x, gate, ids, "traced"))


def test_matrices_are_decoded_once_while_the_budget_lasts_and_right_afterwards_too() -> None:
    weights, _, _ = layer()
    asked: list[tuple[str, int]] = []

    class Counting:
        count, dtype = E, torch.float32

        def gate_up(self, expert: int) -> torch.Tensor:
            asked.append(("gate_up", expert))
            return weights.gate_up(expert)

        def down(self, expert: int) -> torch.Tensor:
            asked.append(("down", expert))
            return weights.down(expert)

    budget = Budget(2 * INNER * HIDDEN * 4 + INNER * HIDDEN * 4)  # one expert
    kept = Kept(Counting(), budget)
    for _ in range(3):
        for expert in (4, 1):
            assert torch.equal(kept.gate_up(expert), weights.gate_up(expert))
            assert torch.equal(kept.down(expert), weights.down(expert))
    assert asked.count(("gate_up", 4)) == 1
    assert asked.count(("gate_up", 1)) == 3
    assert budget.left_bytes == 0


@given(sizes=st.lists(st.integers(0, 100)), total=st.integers(0, 300))
def test_no_more_is_kept_than_the_budget_holds(sizes: list[int], total: int) -> None:
    budget = Budget(total)
    kept = sum(size for size in sizes if budget.take(size))
    assert kept <= total
    assert budget.left_bytes == total - kept
