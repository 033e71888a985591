"""The kernels in Triton's interpreter, against float64 from the codec.

Not collected with the others: Triton decides at its import whether it interprets, so
`test_kernels.py` runs this file in a process of its own.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from dsruntime.codec import fp4
from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.kernels.expand import (
    base_fields,
    four_base,
    four_fp4,
    half_scale,
    plain_words,
    split_words,
)
from dsruntime.kernels.launch import DECODE, Planes, Tile, Tiles
from dsruntime.kernels.moe import Workspace, group, interpreted, moe
from tests.runtime.kernels.random_experts import (
    Experts,
    random_experts,
    relative_error,
    routed_sum,
)

SHAPE = ExpertShape(512, 256)
EXPERTS = 5
CODINGS = (Correction.SPLIT, Correction.PLAIN)
WIDE = Tiles(Tile(512, 8, 16, 4, 3), Tile(512, 32, 16, 4, 3))
"""Fewer, larger programs: the interpreter's time goes by their number."""

fresh_seed = itertools.count(int(os.environ.get("KERNEL_TEST_SEED", "1"))).__next__


def workspace(tokens: int, topk: int, dtype: torch.dtype, tiles: Tiles = WIDE) -> Workspace:
    """Buffers full of NaN, tables full of nonsense: whatever is read must have been written."""
    work = Workspace(
        Planes(SHAPE, Correction.SPLIT), EXPERTS, topk, tokens, dtype, torch.device("cpu"), tiles
    )
    for buffer in (work.ordered, work.hidden, work.partial):
        buffer.fill_(float("nan"))
    work.block_experts.fill_(77)
    work.members.fill_(12345)
    return work


def routing(tokens: int, topk: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:topk] for _ in range(tokens)])
    return torch.rand(tokens, topk, generator=generator), ids.to(torch.int32)


def run(
    experts: Experts,
    tokens: int,
    topk: int,
    *,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    tiles: Tiles = WIDE,
    ids: torch.Tensor | None = None,
    limit: float | None = 10.0,
    scale: float = 1.0,
) -> tuple[torch.Tensor, np.ndarray]:
    """The kernels' result and the reference's, for fresh activations and routing."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(tokens, SHAPE.hidden, generator=generator) * scale).to(dtype)
    weights, drawn = routing(tokens, topk, seed)
    ids = drawn if ids is None else ids
    before = x.clone()
    out = torch.full_like(x, float("nan"))
    got = moe(x, weights, ids, experts.layer, limit, workspace(tokens, topk, dtype, tiles), out=out)
    assert got is out
    assert torch.equal(x, before), "x was changed"
    asked = torch.bincount(ids[ids >= 0].long(), minlength=EXPERTS)
    assert torch.equal(experts.layer.uses.long(), asked)
    experts.layer.uses.zero_()
    return got, routed_sum(experts, x, weights, ids, limit)


def test_this_process_interprets() -> None:
    assert interpreted()


@triton.jit
def expand_kernel(  # type: ignore[no-untyped-def]
    words, low, high, scales, out, kind: tl.constexpr, rows: tl.constexpr
):
    """Every weight of [rows, 2] words (32 weights, one scale), doubled and halved, in order."""
    row = tl.arange(0, rows)[:, None]
    at = row * 2 + tl.arange(0, 2)[None, :]
    scale = half_scale(tl.broadcast_to(tl.load(scales + row), (rows, 2)))
    if kind == "split":
        a, b = split_words(tl.load(words + at), tl.load(low + at), tl.load(high + at))
    elif kind == "plain":
        a, b = plain_words(tl.load(words + at))
    else:
        fields = base_fields(tl.load(words + at))
    for g in tl.static_range(4):
        if kind == "base":
            values = four_base(fields, scale, g, rows, 2)
        else:
            values = four_fp4(a, b, scale, g, kind == "split", rows, 2)
        column = tl.arange(0, 8)[None, :]
        tl.store(out + row * 32 + column // 4 * 16 + 4 * g + column % 4, values)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("kind", ["base", "split", "plain"])
def test_every_code_under_every_scale_is_the_codecs_value_exactly(kind: str) -> None:
    random = np.random.default_rng(fresh_seed())
    codes = random.integers(0, 256, (256, 16), dtype=np.uint8)
    codes[0], codes[1] = np.arange(16) * 17, np.arange(16)[::-1] * 16  # every code, at both places
    scales = np.arange(256, dtype=np.uint8)[:, None]
    base = fp4.encode_base(codes)
    low, high = fp4.encode_split(codes)
    words = codes.view(np.uint64) if kind == "plain" else base.view(np.uint32)
    out = torch.full((256, 32), float("nan"))
    expand_kernel[(1,)](
        *(torch.from_numpy(plane.copy()) for plane in (words, low.view(np.uint32), high, scales)),
        out, kind, 256,
    )  # fmt: skip
    want = fp4.decode_base(base, scales) if kind == "base" else fp4.decode_fp4(codes, scales)
    with np.errstate(over="ignore"):
        expected = want.astype(np.float32)  # 2**127 times six is beyond fp32 in both
    assert np.array_equal(out.numpy()[:255], expected[:255])
    assert np.array_equal(np.signbit(out.numpy()[:255]), np.signbit(expected[:255]))
    assert np.isnan(out.numpy()[255]).all()


@pytest.mark.parametrize("slots", [{}, {0: 2, 1: 0, 2: 4, 3: 1, 4: 3}, {1: 1, 3: 0}])
@pytest.mark.parametrize("coding", CODINGS)
def test_a_decode_step_is_the_routed_sum(coding: Correction, slots: dict[int, int]) -> None:
    experts = random_experts(EXPERTS, SHAPE, coding, fresh_seed(), slots)
    experts.correct(slots)
    got, want = run(experts, 3, 2, seed=fresh_seed())
    assert relative_error(got, want) <= 3e-3


@pytest.mark.parametrize("coding", CODINGS)
def test_a_prefill_is_the_routed_sum(coding: Correction) -> None:
    experts = random_experts(EXPERTS, SHAPE, coding, fresh_seed(), {0: 0, 2: 1})
    experts.correct({0: 0, 2: 1})
    seed = fresh_seed()
    ids = routing(87, 3, seed)[1]
    ids[::7] = -1
    ids[5, 1] = -1
    got, want = run(experts, 87, 3, seed=seed, ids=ids)
    assert relative_error(got, want) <= 3e-3
    assert not got[::7].any()


def test_the_tiles_that_a_card_runs_give_the_routed_sum_too() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {4: 0})
    experts.correct({4: 0})
    ids = torch.tensor([[4], [2]], dtype=torch.int32)
    got, want = run(experts, 2, 1, seed=fresh_seed(), ids=ids, tiles=Tiles(decode=DECODE))
    assert relative_error(got, want) <= 3e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_activation_types_are_as_exact_as_they_are(dtype: torch.dtype) -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {2: 0})
    experts.correct({2: 0})
    got, want = run(experts, 1, 3, seed=fresh_seed(), dtype=dtype)
    assert relative_error(got, want) <= (1e-3 if dtype == torch.float16 else 1e-6)


def test_corrected_by_either_coding_the_result_is_the_same_bits() -> None:
    seed, everyone = fresh_seed(), {expert: expert for expert in range(EXPERTS)}
    results = []
    for coding in CODINGS:
        experts = random_experts(EXPERTS, SHAPE, coding, seed, everyone)
        experts.correct(everyone)
        results.append(run(experts, 2, 2, seed=seed + 1))
    (split, want), (plain, again) = results
    assert np.array_equal(want, again)
    assert torch.equal(split, plain)
    assert relative_error(split, want) <= 3e-3


def test_one_expert_may_get_every_token() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {3: 0})
    experts.correct({3: 0})
    ids = torch.full((19, 1), 3, dtype=torch.int32)
    got, want = run(experts, 19, 1, seed=fresh_seed(), ids=ids)
    assert relative_error(got, want) <= 3e-3


def test_padding_and_experts_that_are_not_there_contribute_nothing() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {})
    experts.layer.base_rows[1] = -1
    ids = torch.tensor([[-1, -1], [1, -1], [2, 1], [-1, 0], [1, 1]], dtype=torch.int32)
    got, want = run(experts, 5, 2, seed=fresh_seed(), ids=ids)
    assert relative_error(got, want) <= 3e-3
    assert not got[[0, 1, 4]].any()


def test_a_base_row_is_where_the_table_says() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {})
    seed = fresh_seed()
    want = run(experts, 2, 2, seed=seed)[0]
    moved = experts.layer.base[[3, 0, 4, 1, 2]].contiguous()
    experts.layer.base.copy_(moved)
    experts.layer.base_rows.copy_(torch.tensor([1, 3, 4, 0, 2], dtype=torch.int32))
    assert torch.equal(run(experts, 2, 2, seed=seed)[0], want)


def test_a_pack_without_corrections_is_served_at_2_bits() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.NONE, fresh_seed(), {})
    got, want = run(experts, 1, 1, seed=fresh_seed())
    assert relative_error(got, want) <= 3e-3


@pytest.mark.parametrize("limit", [10.0, 0.5, None])
def test_the_clamp_comes_before_the_activation(limit: float | None) -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.PLAIN, fresh_seed(), {})
    got, want = run(experts, 1, 2, seed=fresh_seed(), limit=limit, scale=4.0)
    assert relative_error(got, want) <= 3e-3


def test_what_was_promoted_since_is_used_without_anything_being_made_anew() -> None:
    experts = random_experts(EXPERTS, SHAPE, Correction.SPLIT, fresh_seed(), {2: 1})
    ids, seed = torch.tensor([[2]], dtype=torch.int32), fresh_seed()
    coarse, _ = run(experts, 1, 1, seed=seed, ids=ids)
    experts.correct({2: 1})
    full, want = run(experts, 1, 1, seed=seed, ids=ids)
    assert relative_error(full, want) <= 3e-3
    assert not torch.equal(coarse, full)


def test_few_pairs_are_grouped_as_the_sort_groups_them() -> None:
    random = np.random.default_rng(fresh_seed())
    rows = torch.tensor([0, 1, -1, 2, 3, 4], dtype=torch.int32)
    for pairs in (1, 9, 31):
        ids = torch.from_numpy(random.integers(-1, 6, pairs, dtype=np.int32))
        experts = torch.full((pairs,), 99, dtype=torch.int32)
        members = torch.full((pairs * DECODE.tokens + 1,), 99, dtype=torch.int32)
        group(ids, rows, DECODE, experts, members)
        assert blocks(experts, members, DECODE.tokens) == expected_blocks(ids, rows, DECODE.tokens)


def blocks(experts: torch.Tensor, members: torch.Tensor, size: int) -> list[tuple[int, list[int]]]:
    """(expert, its pairs) of each block that is not empty, in order of expert and pair."""
    lanes = members[: len(experts) * size].view(-1, size).tolist()
    found = [
        (expert, [pair for pair in lane if pair >= 0])
        for expert, lane in zip(experts.tolist(), lanes, strict=True)
        if expert >= 0
    ]
    return sorted(found)


def expected_blocks(
    ids: torch.Tensor, rows: torch.Tensor, size: int
) -> list[tuple[int, list[int]]]:
    chosen: dict[int, list[int]] = {}
    for pair, expert in enumerate(ids.tolist()):
        if expert >= 0 and rows[expert] >= 0:
            chosen.setdefault(expert, []).append(pair)
    return [
        (expert, pairs[start : start + size])
        for expert, pairs in sorted(chosen.items())
        for start in range(0, len(pairs), size)
    ]
