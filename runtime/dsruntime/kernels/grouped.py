"""Grouped products over routed experts, 2-bit or corrected (Triton kernels).

A *block* is one expert and up to BT (token, expert) pairs that chose it. Programs are (row tile,
block). Weights are the left operand of the tensor core's product (16 rows at a time) and tokens the
right one (8 at a time), so a block of few tokens wastes little and the weights go from the pack's
planes through asynchronous 16-byte copies into the product's own register layout, expanded there.

Activations lie in the order [4, K/16, 4]: element (g, w, j) is weight 16 w + 4 g + j (`order`).
"""

# ruff: noqa: N803, N806 (constants of a compilation in capitals, as kernels have them)
from __future__ import annotations

import triton
import triton.language as tl

from dsruntime.kernels.expand import (
    base_fields,
    four_base,
    four_fp4,
    half_scale,
    plain_words,
    split_words,
)


@triton.jit
def _narrow(value, kind: tl.constexpr, DOT: tl.constexpr):
    """fp32 -> the buffers' dtype, to nearest even (the interpreter, where DOT is fp32, cuts)."""
    if kind == tl.bfloat16 and DOT == tl.float32:  # noqa: SIM300
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        value = tl.where(value == value, bits.to(tl.float32, bitcast=True), value)
    return value.to(kind)


@triton.jit
def _product(
    x, x_rows, live, codes, scales, correction, high, corrected, rows, KW, KS,
    SPLIT: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """[BM, BT] fp32: `rows` of a matrix times rows `x_rows` of x, both of K = 16 KW."""
    words = tl.arange(0, BK)
    at = rows[:, None] * KW + words[None, :]
    code_at = codes.to(tl.pointer_type(tl.uint32)) + at
    scale_at = scales + rows[:, None] * KS + tl.arange(0, BK // 2)[None, :]
    x_at = x + x_rows[None, :] * (16 * KW) + tl.arange(0, 4 * BK)[:, None]
    total = tl.zeros((BM, BT), tl.float32)
    if corrected:
        if SPLIT:
            low_at = correction.to(tl.pointer_type(tl.uint32)) + at
            high_at = high + at
        else:
            low_at = correction.to(tl.pointer_type(tl.uint64)) + at
            high_at = high
        for k in range(0, KW, BK):
            scale = tl.load(scale_at + k // 2)[:, :, None]
            scale = half_scale(tl.broadcast_to(scale, (BM, BK // 2, 2)).reshape(BM, BK))
            if SPLIT:
                a, b = split_words(tl.load(code_at + k), tl.load(low_at + k), tl.load(high_at + k))
            else:
                a, b = plain_words(tl.load(low_at + k))
            for g in tl.static_range(4):
                some = tl.load(x_at + (g * 4 * KW + k * 4), mask=live[None, :], other=0.0)
                weight = four_fp4(a, b, scale, g, SPLIT, BM, BK)
                total = tl.dot(weight.to(DOT), some.to(DOT), total)
    else:
        for k in range(0, KW, BK):
            scale = tl.load(scale_at + k // 2)[:, :, None]
            scale = half_scale(tl.broadcast_to(scale, (BM, BK // 2, 2)).reshape(BM, BK))
            fields = base_fields(tl.load(code_at + k))
            for g in tl.static_range(4):
                some = tl.load(x_at + (g * 4 * KW + k * 4), mask=live[None, :], other=0.0)
                weight = four_base(fields, scale, g, BM, BK)
                total = tl.dot(weight.to(DOT), some.to(DOT), total)
    return total


@triton.jit
def _planes(base, base_rows, expert, base_bytes, pool, slots, slot_bytes):
    """Where an expert's base row and its slot are, and whether it has a slot."""
    row = base + tl.load(base_rows + expert).to(tl.int64) * base_bytes
    slot = tl.load(slots + expert)
    address = tl.load(pool) + slot.to(tl.int64) * slot_bytes
    # a pointer made of a number carries no alignment; slots and planes are multiples of 16 bytes
    correction = tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 16)
    return row, correction, slot >= 0


@triton.jit
def gate_up_kernel(
    x, out, experts, members, base, base_rows, pool, slots,
    INNER, KW, KS, base_bytes, scales_at, slot_bytes, high_at, topk, limit,
    SPLIT: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[pair] = silu(min(gate, limit)) * clamp(up, -limit, limit), in the order of the next K.

    Half of a row tile are gate rows, half the up rows that go with them.
    """
    block = tl.program_id(1)
    expert = tl.load(experts + block)
    if expert < 0:
        return
    pairs = tl.load(members + block * BT + tl.arange(0, BT))
    live = pairs >= 0
    HALF: tl.constexpr = BM // 2
    tile = tl.arange(0, BM)
    rows = tl.program_id(0) * HALF + (tile % HALF) + (tile // HALF) * INNER
    row, correction, corrected = _planes(
        base, base_rows, expert, base_bytes, pool, slots, slot_bytes
    )
    both = _product(
        x, pairs // topk, live, row, row + scales_at, correction, correction + high_at, corrected,
        rows, KW, KS, SPLIT, BM, BT, BK, DOT,
    )  # fmt: skip
    gate, up = both.reshape(2, HALF, BT).permute(1, 2, 0).split()
    # not minimum and maximum: they drop a NaN
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    hidden = gate / (1 + tl.exp(-gate)) * up
    n = tl.program_id(0) * HALF + tl.arange(0, HALF)
    place = (n // 4 % 4) * (INNER // 4) + n // 16 * 4 + n % 4
    at = out + pairs[None, :] * INNER + place[:, None]
    tl.store(at, _narrow(hidden, out.dtype.element_ty, DOT), mask=live[None, :])


@triton.jit
def down_kernel(
    hidden, out, experts, members, base, base_rows, pool, slots,
    HIDDEN, KW, KS, base_bytes, codes_at, scales_at, slot_bytes, correction_at, high_at,
    SPLIT: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[pair] = W2 hidden[pair]."""
    block = tl.program_id(1)
    expert = tl.load(experts + block)
    if expert < 0:
        return
    pairs = tl.load(members + block * BT + tl.arange(0, BT))
    live = pairs >= 0
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    row, correction, corrected = _planes(
        base, base_rows, expert, base_bytes, pool, slots, slot_bytes
    )
    total = _product(
        hidden, pairs, live, row + codes_at, row + scales_at, correction + correction_at,
        correction + high_at, corrected, rows, KW, KS, SPLIT, BM, BT, BK, DOT,
    )  # fmt: skip
    at = out + pairs[None, :].to(tl.int64) * HIDDEN + rows[:, None]
    tl.store(at, _narrow(total, out.dtype.element_ty, DOT), mask=live[None, :])


@triton.jit
def combine_kernel(
    partial, weights, ids, base_rows, uses, out, HIDDEN,
    TOPK: tl.constexpr, BN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out[token] = sum of weight times partial over its experts, in order; padding skipped.

    Counts who was asked for, present or not.
    """
    token = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for j in tl.static_range(TOPK):
        pair = token * TOPK + j
        expert = tl.load(ids + pair)
        if expert >= 0:
            if tl.program_id(1) == 0:
                tl.atomic_add(uses + expert, 1)
            if tl.load(base_rows + expert) >= 0:
                at = partial + pair.to(tl.int64) * HIDDEN + n
                value = tl.load(at, mask=n < HIDDEN, other=0.0)
                total += tl.load(weights + pair) * value.to(tl.float32)
    at = out + token.to(tl.int64) * HIDDEN + n
    tl.store(at, _narrow(total, out.dtype.element_ty, DOT), mask=n < HIDDEN)


@triton.jit(do_not_specialize=["PAIRS"])  # one binary, whatever the sizes of captured graphs
def group_kernel(ids, base_rows, experts, members, PAIRS, BP: tl.constexpr, BT: tl.constexpr):
    """Blocks of few pairs: block p is pair p's expert if p is the first of its block, else empty.

    No sort, no counts, no memory beside the result: every program looks at all pairs.
    """
    mine = tl.program_id(0)
    pair = tl.arange(0, BP)
    expert = tl.load(ids + pair, mask=pair < PAIRS, other=-1)
    own = tl.load(ids + mine)
    rank = tl.cumsum((expert == own).to(tl.int32), 0) - 1
    first = tl.sum(tl.where(pair == mine, rank, 0), 0)
    lane = tl.arange(0, BT)
    chosen = (expert == own)[None, :] & (rank[None, :] == first + lane[:, None])
    tl.store(members + mine * BT + lane, tl.sum(tl.where(chosen, pair[None, :] + 1, 0), 1) - 1)
    present = own >= 0
    present = present & (tl.load(base_rows + own, mask=present, other=-1) >= 0)
    tl.store(experts + mine, tl.where(present & (first % BT == 0), own, -1))
