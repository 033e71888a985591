"""The sparse indexer."""

from __future__ import annotations

from typing import Any

import torch

from dsruntime.cpu.patches.base import Patch, Situation


def _select(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    chosen: torch.Tensor,
) -> None:
    """Score the compressed keys of each token's request and keep the best.

    Args:
        q: [T, H, 128] e4m3; weights: [T, H] fp32; cache: [blocks, block_size, 132] uint8.
        lengths: [T] keys each token may see; tables: [T, P] pages of each token's request.
        chosen: [T, k] int32, written: positions among the request's keys, -1 for none.
    """
    from vllm import _custom_ops as ops

    block_size = cache.shape[1]
    pages = cache.view(cache.shape[0], -1)
    longest = int(lengths.max())
    logits = ops.fp8_paged_mqa_logits_cpu(q, pages, weights, lengths, tables, block_size, longest)
    slots = torch.empty(chosen.shape, dtype=torch.int32)  # asked for by the kernel, read by nobody
    ops.topk_transform_512_cpu(logits, lengths, tables, slots, block_size, chosen)


def indexer_forward(
    self: Any,
    hidden_states: torch.Tensor,
    q_quant: torch.Tensor,
    k: torch.Tensor | None,
    weights: torch.Tensor,
) -> torch.Tensor:
    """``SparseAttnIndexer.forward_cpu`` for any ``index_topk`` (any query rows per request too).

    Writes, for every token of the step, the compressed positions it attends to.
    """
    from vllm.forward_context import get_forward_context

    buffer: torch.Tensor = self.topk_indices_buffer
    all_metadata = get_forward_context().attn_metadata
    if not isinstance(all_metadata, dict):
        return buffer  # profiling: no step to act on
    metadata = all_metadata[self.k_cache.prefix]
    cache = self.k_cache.kv_cache
    buffer[: hidden_states.shape[0]] = -1

    if metadata.num_prefills > 0:
        for chunk in metadata.prefill.chunks:
            tokens = slice(chunk.token_start, chunk.token_end)
            lengths = chunk.cu_seqlen_ke - chunk.cu_seqlen_ks
            bounds = chunk.local_cu_seq_lens
            requests = torch.searchsorted(bounds, chunk.cu_seqlen_ks, right=True) - 1
            tables = chunk.block_table[requests.clamp_(max=chunk.block_table.shape[0] - 1)]
            chosen = buffer[tokens, : self.topk_tokens]
            _select(q_quant[tokens], weights[tokens], cache, lengths, tables, chosen)

    if metadata.num_decodes > 0:
        count = metadata.num_decode_tokens
        lengths = metadata.decode.seq_lens.reshape(count, -1)[:, -1]
        tables = metadata.decode.block_table[:count]
        chosen = buffer[:count, : self.topk_tokens]
        _select(q_quant[:count], weights[:count], cache, lengths, tables, chosen)
    return buffer


def any_topk(_situation: Situation) -> None:
    """vLLM asserts ``index_topk == 512``, which is a limit of its AMX kernel, not of the model."""
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

    SparseAttnIndexer.forward_cpu = indexer_forward


def one_row_per_request(_situation: Situation) -> None:
    """vLLM hands two query rows per request to a CPU path that takes one.

    With one draft token the indexer asserts and the engine dies once the context is long enough to
    need it. Claiming support for single rows only makes vLLM flatten requests into tokens.
    """
    from vllm.v1.attention.backends.mla import indexer

    indexer._supports_native_decode = lambda next_n: next_n == 1


PATCHES = (
    Patch(
        "index-topk",
        "vLLM's CPU indexer only takes index_topk 512",
        needed=lambda s: "topk_transform_512_cpu" in s.portable_ops,
        apply=any_topk,
    ),
    Patch(
        "draft-rows",
        "vLLM's CPU indexer crashes on two query rows per request",
        needed=lambda s: s.speculative_tokens > 0,
        apply=one_row_per_request,
    ),
)
