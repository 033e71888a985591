"""One layer's routed experts on the device, as four launches of static shape.

Nothing here waits for the device, looks at a value of a tensor, or allocates memory whose size
depends on one: a step can be captured in a CUDA graph. What changes between replays (the routing,
which experts have a slot, where the pool is) is read from tensors whose address never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from dsruntime.kernels.grouped import (
    combine_kernel,
    down_kernel,
    gate_up_kernel,
    group_kernel,
)
from dsruntime.kernels.launch import FEW_PAIRS, TILES, Planes, Tile, Tiles, most_blocks

COMBINE_COLUMNS = 512
_NO_LIMIT = float("inf")


@dataclass(frozen=True)
class LayerPlanes:
    """What the kernels read of one layer.

    Attributes:
        base: [rows, base row bytes] uint8: base rows, as the pack has them.
        base_rows: [experts] int32: each expert's row of `base`; below zero: not on the device, and
            its pairs contribute nothing.
        slots: [experts] int32: each expert's slot of the pool; below zero: 2 bits.
        uses: [experts] int32: counts up, one for each pair.
        pool: [1] int64: address of the pool's memory; read only where a slot is not negative.
    """

    planes: Planes
    base: torch.Tensor
    base_rows: torch.Tensor
    slots: torch.Tensor
    uses: torch.Tensor
    pool: torch.Tensor


@dataclass
class Workspace:
    """Buffers for up to `tokens` tokens at a time, made once and shared by all layers."""

    planes: Planes
    experts: int
    topk: int
    tokens: int
    dtype: torch.dtype
    device: torch.device
    tiles: Tiles = TILES
    ordered: torch.Tensor = field(init=False)
    hidden: torch.Tensor = field(init=False)
    partial: torch.Tensor = field(init=False)
    block_experts: torch.Tensor = field(init=False)
    members: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        pairs, shape = self.tokens * self.topk, self.planes.shape
        sizes = {self.tiles.of(n): n for n in (min(pairs, FEW_PAIRS), pairs)}
        counts = {t: most_blocks(n, self.experts, t.tokens) for t, n in sizes.items()}

        def buffer(*size: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=self.device)

        self.ordered = buffer(self.tokens, shape.hidden)
        self.hidden = buffer(pairs, shape.intermediate)
        # fp32: a second rounding to bf16 would take the result beyond its error bound
        self.partial = buffer(pairs, shape.hidden, dtype=torch.float32)
        self.block_experts = buffer(max(counts.values()), dtype=torch.int32)
        # one more: where the sort puts pairs that belong to no block
        members = max(count * tile.tokens for tile, count in counts.items()) + 1
        self.members = buffer(members, dtype=torch.int32)

    @property
    def size_bytes(self) -> int:
        """Device memory of all buffers."""
        found = (self.ordered, self.hidden, self.partial, self.block_experts, self.members)
        return sum(each.numel() * each.element_size() for each in found)


def moe(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    layer: LayerPlanes,
    limit: float | None,
    work: Workspace,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``sum_k w_k expert_k(x)`` per token: this rank's share, not reduced over ranks.

    Args:
        x: [T, H], not modified; topk_weights: [T, k] fp32; topk_ids: [T, k] int32, negative:
            padding.
        limit: the clamp of gate and up before the activation; None: no clamp.
        out: where the result goes; every element is written.

    Returns:
        [T, H] in x's dtype; zero for a token without experts.
    """
    if out is None:
        out = torch.empty_like(x)
    for start in range(0, x.shape[0], work.tokens):
        part = slice(start, start + work.tokens)
        _moe(x[part], topk_weights[part], topk_ids[part], layer, limit, work, out[part])
    return out


def _moe(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    layer: LayerPlanes,
    limit: float | None,
    work: Workspace,
    out: torch.Tensor,
) -> None:
    tokens, hidden = x.shape
    topk = ids.shape[1]
    pairs = tokens * topk
    flat = ids.contiguous().view(-1)
    tile = work.tiles.of(pairs)
    blocks = most_blocks(pairs, work.experts, tile.tokens)
    experts, members = work.block_experts[:blocks], work.members
    group(flat, layer.base_rows, tile, experts, members)
    ordered = work.ordered[:tokens]
    reorder(x, ordered)
    planes = layer.planes
    common = {
        "SPLIT": planes.split,
        "BM": tile.rows,
        "BT": tile.tokens,
        "BK": tile.words,
        "DOT": dot_type(x.dtype),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    tables = (experts, members, layer.base, layer.base_rows, layer.pool, layer.slots)
    gate_up_kernel[(planes.shape.intermediate * 2 // tile.rows, blocks)](
        ordered, work.hidden, *tables, topk=topk,
        limit=_NO_LIMIT if limit is None else limit, **planes.gate_up(), **common,
    )  # fmt: skip
    down_kernel[(hidden // tile.rows, blocks)](
        work.hidden, work.partial, *tables, **planes.down(), **common
    )
    columns = -(-hidden // COMBINE_COLUMNS)
    combine_kernel[(tokens, columns)](
        work.partial, weights.contiguous(), flat, layer.base_rows, layer.uses, out, hidden,
        TOPK=topk, BN=COMBINE_COLUMNS, DOT=common["DOT"], num_warps=4,
    )  # fmt: skip


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """What the tensor core multiplies; the interpreter cannot multiply bf16."""
    if interpreted():
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def reorder(x: torch.Tensor, out: torch.Tensor) -> None:
    """[T, K] -> the kernels' order [T, 4, K/16, 4]: element (g, w, j) is x[16 w + 4 g + j]."""
    tokens, k = x.shape
    words = x.unflatten(1, (k // 16, 4, 4))  # also of rows that are not contiguous
    out.view(tokens, 4, k // 16, 4).copy_(words.transpose(1, 2))


def group(
    ids: torch.Tensor,
    base_rows: torch.Tensor,
    tile: Tile,
    experts: torch.Tensor,
    members: torch.Tensor,
) -> None:
    """Blocks of pairs with one expert: `experts` [blocks] (-1: empty), `members` [blocks * BT].

    Every pair whose expert is on the device is in exactly one block, once.
    """
    if len(ids) <= FEW_PAIRS:
        group_kernel[(len(ids),)](
            ids, base_rows, experts, members, len(ids),
            BP=FEW_PAIRS, BT=tile.tokens, num_warps=4,
        )  # fmt: skip
        return
    group_by_sort(ids, base_rows, tile.tokens, experts, members)


def group_by_sort(
    ids: torch.Tensor,
    base_rows: torch.Tensor,
    block_tokens: int,
    experts: torch.Tensor,
    members: torch.Tensor,
) -> None:
    """`group` for many pairs; sizes depend on how many, never on which."""
    count = len(base_rows)
    there = (ids >= 0) & (base_rows[ids.clamp(min=0).long()] >= 0)
    expert = torch.where(there, ids.long(), count)
    uses = torch.zeros(count + 1, dtype=torch.int64, device=ids.device)
    uses.scatter_add_(0, expert, torch.ones_like(expert))
    needed = (uses + block_tokens - 1) // block_tokens
    needed[count] = 0
    ends = needed.cumsum(0)
    ordered, order = expert.sort(stable=True)
    rank = torch.arange(len(ids), device=ids.device) - (uses.cumsum(0) - uses)[ordered]
    place = (ends - needed)[ordered] * block_tokens + rank
    last = len(members) - 1
    members.fill_(-1)
    members.scatter_(0, torch.where(ordered < count, place, last), order.to(torch.int32))
    number = torch.arange(len(experts), device=ids.device)
    owner = torch.searchsorted(ends[:count], number, right=True)
    experts.copy_(torch.where(owner < count, owner, -1))
