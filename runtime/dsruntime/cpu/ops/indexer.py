"""The lightning indexer: which compressed entries a query may attend to.

Scores are ``sum_h w_h relu(q_h . k)`` over FP8 queries and keys (DeepSeek-V4 paper section 2.3.1;
transformers' DeepseekV4IndexerScorer), the best k entries are kept.
"""

from __future__ import annotations

import itertools

import torch

from dsruntime.cpu.ops.fp8 import decode_e4m3, encode_e4m3, power_of_two, scale_exponents
from dsruntime.cpu.ops.pages import load_index_keys
from dsruntime.cpu.ops.registry import portable
from dsruntime.cpu.ops.rope import rotate_tail

SCORE_BLOCK_ELEMENTS = 1 << 22
"""Most per-head scores held at once (16 MiB of fp32): bounds memory, large enough for GEMM."""


@portable(
    "fused_indexer_q_rope_quant_cpu(Tensor positions, Tensor index_q, "
    "Tensor index_q_cos_sin_cache, Tensor(a!) index_q_fp8, Tensor index_weights, "
    "float index_weights_softmax_scale, float index_weights_head_scale, "
    "Tensor(b!) index_weights_out) -> ()"
)
def fused_indexer_q_rope_quant_cpu(
    positions: torch.Tensor,
    index_q: torch.Tensor,
    index_q_cos_sin_cache: torch.Tensor,
    index_q_fp8: torch.Tensor,
    index_weights: torch.Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    index_weights_out: torch.Tensor,
) -> None:
    """Rotate and quantize the indexer's queries; fold each scale into its head's weight.

    Args:
        index_q: [T, H, 128] fp32; index_weights: [T, H] fp32.
        index_q_fp8: [T, H, 128] e4m3, index_weights_out: [T, H] fp32, both written.
    """
    rotated = rotate_tail(index_q, positions, index_q_cos_sin_cache)
    rope = index_q_cos_sin_cache.shape[-1]
    # only the rotated channels are rounded: the others arrive as bf16 values already
    rotated[..., -rope:] = rotated[..., -rope:].to(torch.bfloat16).float()
    exponents = scale_exponents(rotated.abs().amax(dim=-1))
    index_q_fp8.copy_(encode_e4m3(rotated, exponents.unsqueeze(-1)))
    factor = index_weights_softmax_scale * index_weights_head_scale
    torch.mul(index_weights, power_of_two(exponents) * factor, out=index_weights_out)


def _logits_meta(
    q_fp8: torch.Tensor, kvcache_fp8: torch.Tensor, weight: torch.Tensor, seq_lens: torch.Tensor,
    page_table: torch.Tensor, block_size: int, max_seq_len: int,
) -> torch.Tensor:  # fmt: skip
    return q_fp8.new_empty((q_fp8.shape[0], max_seq_len), dtype=torch.float32)


def table_runs(page_table: torch.Tensor) -> list[tuple[int, int]]:
    """[start, end) runs of consecutive equal rows: the tokens of one request stand together."""
    changes = (page_table[1:] != page_table[:-1]).any(dim=1).nonzero().squeeze(1) + 1
    edges = [0, *changes.tolist(), page_table.shape[0]]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


@portable(
    "fp8_paged_mqa_logits_cpu(Tensor q_fp8, Tensor kvcache_fp8, Tensor weight, Tensor seq_lens, "
    "Tensor page_table, int block_size, int max_seq_len) -> Tensor",
    meta=_logits_meta,
)
def fp8_paged_mqa_logits_cpu(
    q_fp8: torch.Tensor,
    kvcache_fp8: torch.Tensor,
    weight: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    block_size: int,
    max_seq_len: int,
) -> torch.Tensor:
    """Index scores of every query against the keys of its request.

    The keys of a run of tokens with the same page table are read once, not once per token.

    Args:
        q_fp8: [T, H, 128] e4m3; weight: [T, H] fp32 with the query scales folded in.
        kvcache_fp8: index pages; page_table: [T, P] pages of each token's request.
        seq_lens: [T] keys that each token may see.

    Returns:
        [T, max_seq_len] fp32, -inf at and beyond seq_lens.
    """
    tokens, heads, _ = q_fp8.shape
    out = torch.full((tokens, max_seq_len), float("-inf"), dtype=torch.float32)
    for start, end in table_runs(page_table):
        length = min(int(seq_lens[start:end].max()), max_seq_len)
        if length == 0:
            continue
        key = torch.arange(length)
        slots = page_table[start, key // block_size].to(torch.int64) * block_size + key % block_size
        keys = load_index_keys(kvcache_fp8, block_size, slots)
        step = max(1, SCORE_BLOCK_ELEMENTS // (heads * length))
        for first in range(start, end, step):
            last = min(first + step, end)
            queries = decode_e4m3(q_fp8[first:last])
            scores = torch.matmul(queries, keys.t()).relu_()
            summed = torch.bmm(weight[first:last].unsqueeze(1), scores).squeeze(1)
            unseen = key >= seq_lens[first:last].unsqueeze(1)
            out[first:last, :length] = summed.masked_fill_(unseen, float("-inf"))
    return out


@portable(
    "topk_transform_512_cpu(Tensor scores, Tensor seq_lens, Tensor page_tables, "
    "Tensor(a!) out_page_indices, int page_size, Tensor(b!)? out_raw_indices=None) -> ()"
)
def topk_transform_512_cpu(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: torch.Tensor | None = None,
) -> None:
    """The k best entries of each row, k being the width of the outputs (not only 512).

    Args:
        scores: [T, L]; seq_lens: [T], entries at and beyond it are never chosen.
        page_tables: [T, P]; out_page_indices: [T, k] slots, out_raw_indices: [T, k] positions,
            both -1 where a row has fewer than k entries.
    """
    k = out_page_indices.shape[1]
    raw = torch.full(out_page_indices.shape, -1, dtype=torch.int64)
    width = min(k, scores.shape[1])
    if width:
        unseen = torch.arange(scores.shape[1]) >= seq_lens.unsqueeze(1)
        chosen = scores.masked_fill(unseen, float("-inf")).topk(width, dim=1).indices
        raw[:, :width] = chosen.masked_fill_(chosen >= seq_lens.unsqueeze(1), -1)
    seen = raw.clamp(min=0)
    pages = page_tables.gather(1, torch.div(seen, page_size, rounding_mode="floor"))
    slots = pages.to(torch.int64) * page_size + seen % page_size
    out_page_indices.copy_(torch.where(raw >= 0, slots, raw))
    if out_raw_indices is not None:
        out_raw_indices.copy_(raw)
