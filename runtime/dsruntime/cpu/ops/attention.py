"""Attention over a sliding window and compressed entries: one shared key/value head, a sink.

The operator gets, for every token, the slots it may see. Reading ``slots x 512`` values per token
(the naive gather) moves each key as often as it is seen: 128 times for the window alone. But
neighbouring tokens of a prompt see almost the same rows, so a block of tokens is served from the
*union* of its rows with one dense product and a mask: for the window that is a banded GEMM, for
compressed entries a dense one. Where tokens share little (decoding a batch), a block is one token.
"""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.pages import load_latents
from dsruntime.cpu.ops.registry import portable

BLOCK_ROWS = 1024
"""Query rows (tokens x heads) per dense block that keep a product busy."""


def block_tokens(heads: int) -> int:
    """Tokens per dense block, 16 to 64.

    A block of B tokens computes 127 + B window rows where each token sees 128: large blocks waste
    products (half of them at 64 tokens), small ones cost calls. Many heads fill a product with
    few tokens.
    """
    return max(16, min(64, BLOCK_ROWS // heads))


GATHER_COST = 20
"""Reading one row for one token costs as much as this many heads' products with it."""

TOKEN_COST = 6500
"""Serving a token alone costs as much, apart from its rows, as this many head-row products.

Both fitted to timings of `_attend` on an AVX2 machine (14 ns per head and row, 0.3 us per row
read, 90 us per call), 4 to 64 heads, 128 and 640 rows. They only decide speed.
"""


def dense_is_cheaper(tokens: int, heads: int, union_rows: int, seen_pairs: int) -> bool:
    """Whether a block's tokens are better served together than one by one.

    Together: every head of every token against every row of the union. One by one: only the pairs
    that are seen, but each pair also costs reading its row for that token alone.
    """
    together = tokens * union_rows * heads
    return together <= seen_pairs * (heads + GATHER_COST) + tokens * TOKEN_COST


def _distinct(slots: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct valid slots in ascending order, and each slot's place among them.

    Args:
        slots: [N] int64 below capacity, -1 for none.

    Returns:
        used [R] int64, place [N] int64 (R for -1).
    """
    if slots.numel() < capacity // 8:  # few: sorting them beats touching the whole capacity
        used, place = torch.unique(slots, return_inverse=True)
        if used.numel() and int(used[0]) < 0:
            used = used[1:]
            place = torch.where(place == 0, used.numel(), place - 1)
        return used, place
    seen = torch.zeros(capacity + 1, dtype=torch.bool)
    seen[slots] = True  # -1 lands on the extra last place
    seen[capacity] = False
    used = seen.nonzero().squeeze(1)
    places = torch.full((capacity + 1,), used.numel(), dtype=torch.int64)
    places[used] = torch.arange(used.numel())
    return used, places[slots]


class _Rows:
    """The distinct rows of one cache that a step's tokens see, read once.

    ``rows``: [R, 512] fp32. ``index``: [T, K] row of each slot, R where the slot is -1.
    """

    def __init__(self, cache: torch.Tensor, block_size: int, slots: torch.Tensor) -> None:
        slots = slots.to(torch.int64)
        used, index = _distinct(slots.reshape(-1), cache.shape[0] * block_size)
        self.rows = load_latents(cache, block_size, used)
        self.index = index.view(slots.shape)

    def union(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows seen by tokens [first, last): (row numbers [U], mask [last - first, U] bool)."""
        index = self.index[first:last]
        count = self.rows.shape[0]
        seen = torch.zeros((last - first, count + 1), dtype=torch.bool)
        seen.scatter_(1, index, True)
        seen = seen[:, :count]
        used = seen.any(dim=0).nonzero().squeeze(1)
        return used, seen.index_select(1, used)


def _attend(
    q: torch.Tensor, rows: torch.Tensor, seen: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention of a block: q [B, H, D] over rows [U, D], seen [B, U], sink [H]."""
    tokens, heads, width = q.shape
    count = rows.shape[0]
    scores = torch.empty((tokens * heads, count + 1), dtype=torch.float32)
    torch.mm(q.reshape(-1, width), rows.t(), out=scores[:, :count])
    per_head = scores.view(tokens, heads, count + 1)
    per_head[..., :count].mul_(scale)
    if not bool(seen.all()):
        per_head[..., :count].masked_fill_(~seen.unsqueeze(1), float("-inf"))
    per_head[..., count] = sink  # a key without a value: it only takes weight away
    weights = torch.softmax(scores, dim=-1)
    return torch.mm(weights[:, :count], rows).view(tokens, heads, width)


@portable(
    "flash_mla_with_kvcache_cpu(Tensor(a!) out, Tensor q, Tensor window_cache_2d, "
    "Tensor window_slots, int window_block_size, Tensor compressed_cache_2d, "
    "Tensor compressed_slots, int compressed_block_size, Tensor attn_sink, float scale) -> ()"
)
def flash_mla_with_kvcache_cpu(
    out: torch.Tensor,
    q: torch.Tensor,
    window_cache_2d: torch.Tensor,
    window_slots: torch.Tensor,
    window_block_size: int,
    compressed_cache_2d: torch.Tensor,
    compressed_slots: torch.Tensor,
    compressed_block_size: int,
    attn_sink: torch.Tensor,
    scale: float,
) -> None:
    """Attend every token to its window and its compressed entries.

    Args:
        out: [T, H, 512], written; q: [T, H, 512].
        window_slots: [T, W], compressed_slots: [T, K] (K may be 0): slots in their caches
            (fp8_ds_mla pages), -1 for none; a token's slots are distinct.
        attn_sink: [H] logits of a key that has no value.
    """
    window = _Rows(window_cache_2d, window_block_size, window_slots)
    with_compressed = compressed_slots.shape[1] > 0
    compressed = (
        _Rows(compressed_cache_2d, compressed_block_size, compressed_slots)
        if with_compressed
        else None
    )
    sources = [window] if compressed is None else [window, compressed]
    sink = attn_sink[: q.shape[1]].float()
    block = block_tokens(q.shape[1])
    pending = [(first, min(first + block, q.shape[0])) for first in range(0, q.shape[0], block)]
    while pending:
        first, last = pending.pop()
        unions = [source.union(first, last) for source in sources]
        seen = torch.cat([mask for _, mask in unions], dim=1)
        tokens = last - first
        if tokens > 1 and not dense_is_cheaper(tokens, q.shape[1], seen.shape[1], int(seen.sum())):
            pending.extend((token, token + 1) for token in range(first, last))
            continue
        rows = torch.cat(
            [
                source.rows.index_select(0, used)
                for source, (used, _) in zip(sources, unions, strict=True)
            ]
        )
        out[first:last] = _attend(q[first:last].float(), rows, seen, sink, scale).to(out.dtype)
