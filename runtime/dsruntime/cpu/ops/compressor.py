"""Compressed key/value entries: per-token states, pooled once per ``ratio`` tokens.

Formulas: DeepSeek-V4 paper sections 2.3.1 (overlapping windows, ratio 4) and 2.3.2 (ratio 128);
rounding as in vLLM's fused_compress_quant_cache.py.
"""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.pages import NOPE_DIM, store_index_keys, store_latents
from dsruntime.cpu.ops.registry import portable
from dsruntime.cpu.ops.rope import rotate_tail


@portable(
    "save_partial_states_cpu(Tensor kv, Tensor score, Tensor ape, Tensor positions, "
    "Tensor(a!) state_cache, Tensor slot_mapping) -> ()"
)
def save_partial_states_cpu(
    kv: torch.Tensor,
    score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Keep ``[kv, score + ape[position % ratio]]`` of each token until its window closes.

    Args:
        kv, score: [T, W] fp32; ape: [ratio, W]; positions: [T].
        state_cache: [blocks, block_size, 2 W] fp32, written in place.
        slot_mapping: [N <= T] state slots, -1 stores nothing.
    """
    kept = (slot_mapping >= 0).nonzero().squeeze(1)
    if not kept.numel():
        return
    block_size = state_cache.shape[1]
    slots = slot_mapping[kept].to(torch.int64)
    biased = score[kept] + ape.index_select(0, positions[kept] % ape.shape[0])
    at = (torch.div(slots, block_size, rounding_mode="floor"), slots % block_size)
    state_cache[at] = torch.cat([kv[kept], biased], dim=-1).to(state_cache.dtype)


def pool_windows(
    state_cache: torch.Tensor, window_slots: torch.Tensor, head_dim: int, ratio: int
) -> torch.Tensor:
    """Softmax-weighted sums over windows of token states, channel by channel.

    With overlap (windows of 2 ratio tokens, states twice as wide) the earlier half of a window
    contributes the first ``head_dim`` channels of its states, the later half the second.

    Args:
        state_cache: [blocks, block_size, 2 W] fp32, W = head_dim or 2 head_dim.
        window_slots: [N, window] state slots, -1 before the start of the sequence.

    Returns:
        [N, head_dim] fp32.
    """
    block_size = state_cache.shape[1]
    width = state_cache.shape[2] // 2
    valid = window_slots >= 0
    slots = window_slots.clamp(min=0).to(torch.int64)
    states = state_cache[torch.div(slots, block_size, rounding_mode="floor"), slots % block_size]
    values, logits = states[..., :width], states[..., width:]
    if width != head_dim:
        values = torch.cat([values[:, :ratio, :head_dim], values[:, ratio:, head_dim:]], dim=1)
        logits = torch.cat([logits[:, :ratio, :head_dim], logits[:, ratio:, head_dim:]], dim=1)
    logits = logits.masked_fill(~valid.unsqueeze(-1), float("-inf"))
    # a slot that was never written may hold anything, and 0 * NaN is NaN
    values = values.masked_fill(~valid.unsqueeze(-1), 0.0)
    return (values * logits.softmax(dim=1)).sum(dim=1)


def _compress(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos_sin: torch.Tensor,
    ratio: int,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The entries that close with these tokens: (slots [N], normed and rotated rows [N, D])."""
    count = kv_slot_mapping.shape[0]
    closing = (kv_slot_mapping >= 0) & ((positions[:count] + 1) % ratio == 0)
    kept = closing.nonzero().squeeze(1)
    if not kept.numel():
        return None
    pooled = pool_windows(state_cache, gather_slots[kept], weight.shape[0], ratio)
    normed = pooled * torch.rsqrt(pooled.square().mean(dim=-1, keepdim=True) + eps) * weight
    start = torch.div(positions[kept], ratio, rounding_mode="floor") * ratio
    return kv_slot_mapping[kept], rotate_tail(normed, start, cos_sin)


_SCHEMA = (
    "(Tensor state_cache, Tensor gather_slots, Tensor positions, Tensor kv_slot_mapping, "
    "Tensor rms_norm_weight, float rms_norm_eps, Tensor cos_sin_cache, Tensor(a!) kv_cache_2d, "
    "int kv_cache_block_size, int compress_ratio) -> ()"
)


@portable("compress_norm_rope_store_cpu" + _SCHEMA)
def compress_norm_rope_store_cpu(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache_2d: torch.Tensor,
    kv_cache_block_size: int,
    compress_ratio: int,
) -> None:
    """Pool, normalize, rotate and store the attention entries that close with these tokens.

    Args:
        gather_slots: [T, window] state slots of each token's window; positions: [>= T].
        kv_slot_mapping: [T] slots in the compressed cache, -1 for tokens that close nothing.
        kv_cache_2d: fp8_ds_mla pages, written in place.
    """
    entries = _compress(
        state_cache, gather_slots, positions, kv_slot_mapping, rms_norm_weight, rms_norm_eps,
        cos_sin_cache, compress_ratio,
    )  # fmt: skip
    if entries is not None:
        slots, rows = entries
        # the reference rounds what it quantizes to bf16 first, the rotary channels only last
        rows[:, :NOPE_DIM] = rows[:, :NOPE_DIM].to(torch.bfloat16).float()
        store_latents(kv_cache_2d, kv_cache_block_size, slots, rows)


@portable("compress_norm_rope_store_indexer_cpu" + _SCHEMA)
def compress_norm_rope_store_indexer_cpu(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache_2d: torch.Tensor,
    kv_cache_block_size: int,
    compress_ratio: int,
) -> None:
    """The same for the indexer's keys (128 channels, one scale), into index pages."""
    entries = _compress(
        state_cache, gather_slots, positions, kv_slot_mapping, rms_norm_weight, rms_norm_eps,
        cos_sin_cache, compress_ratio,
    )  # fmt: skip
    if entries is not None:
        slots, rows = entries
        store_index_keys(kv_cache_2d, kv_cache_block_size, slots, rows.to(torch.bfloat16).float())
