"""The naive gather: every token reads every row it sees. The reference the runtime's is held to."""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.pages import load_latents


def gather_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    window_cache: torch.Tensor,
    window_slots: torch.Tensor,
    window_block_size: int,
    compressed_cache: torch.Tensor,
    compressed_slots: torch.Tensor,
    compressed_block_size: int,
    sink: torch.Tensor,
    scale: float,
) -> None:
    """The same operator as the runtime's, reading [tokens, slots, 512] rows, 64 tokens at a time.

    (All tokens at once would be slower still: 3 GB of rows at 2,300 tokens.)
    """
    sources = [(window_cache, window_block_size, window_slots)]
    if compressed_slots.shape[1]:
        sources.append((compressed_cache, compressed_block_size, compressed_slots))
    for first in range(0, q.shape[0], 64):
        part = slice(first, first + 64)
        gathered, valid = [], []
        for cache, block_size, slots in sources:
            some = slots[part]
            rows = load_latents(cache, block_size, some.clamp(min=0).reshape(-1))
            gathered.append(rows.view(*some.shape, rows.shape[-1]))
            valid.append(some >= 0)
        rows, seen = torch.cat(gathered, dim=1), torch.cat(valid, dim=1)
        scores = torch.bmm(q[part].float(), rows.transpose(1, 2)) * scale
        scores = scores.masked_fill(~seen.unsqueeze(1), float("-inf"))
        column = sink[: q.shape[1]].float().view(1, -1, 1).expand(scores.shape[0], -1, 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
        out[part] = torch.bmm(weights, rows).to(out.dtype)
