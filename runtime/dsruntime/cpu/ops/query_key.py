"""Queries and keys around attention: norm, rotation, insertion, and the rotation undone."""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.pages import HEAD_DIM, store_latents
from dsruntime.cpu.ops.registry import portable
from dsruntime.cpu.ops.rope import rotate_tail


def _qnorm_meta(
    q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, swa_kv_cache_2d: torch.Tensor,
    slot_mapping: torch.Tensor, cos_sin_cache: torch.Tensor, q_head_padded: int, eps: float,
    cache_block_size: int,
) -> torch.Tensor:  # fmt: skip
    return q.new_empty((q.shape[0], q_head_padded, q.shape[2]))


@portable(
    "fused_qnorm_rope_kv_insert_cpu(Tensor q, Tensor kv, Tensor positions, "
    "Tensor(a!) swa_kv_cache_2d, Tensor slot_mapping, Tensor cos_sin_cache, int q_head_padded, "
    "float eps, int cache_block_size) -> Tensor",
    meta=_qnorm_meta,
)
def fused_qnorm_rope_kv_insert_cpu(
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    swa_kv_cache_2d: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_head_padded: int,
    eps: float,
    cache_block_size: int,
) -> torch.Tensor:
    """Queries normalized per head (no weight) and rotated; keys rotated and stored at their slots.

    Args:
        q: [T, H, 512]; kv: [T, 512]; positions: [T]; slot_mapping: [N <= T], -1 stores nothing.
        swa_kv_cache_2d: fp8_ds_mla pages, written in place.
        q_head_padded: heads of the result; those beyond H are zero.

    Returns:
        [T, q_head_padded, 512] in q's dtype.
    """
    tokens, heads, width = q.shape
    wide = q.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    rotated = rotate_tail(wide, positions, cos_sin_cache).to(q.dtype)
    kept = (slot_mapping >= 0).nonzero().squeeze(1)
    if kept.numel():
        rows = rotate_tail(kv[kept].float(), positions[kept], cos_sin_cache)
        store_latents(swa_kv_cache_2d, cache_block_size, slot_mapping[kept], rows)
    if heads == q_head_padded:
        return rotated
    padded = q.new_zeros((tokens, q_head_padded, width))
    padded[:, :heads] = rotated
    return padded


def _inverse_meta(
    o: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, rope_dim: int
) -> torch.Tensor:
    return o.new_empty(o.shape, dtype=torch.float32)


@portable(
    "inverse_gptj_rope_o_proj_cpu(Tensor o, Tensor positions, Tensor cos_sin_cache, int rope_dim) "
    "-> Tensor",
    meta=_inverse_meta,
)
def inverse_gptj_rope_o_proj_cpu(
    o: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, rope_dim: int
) -> torch.Tensor:
    """Undo the rotation that attention outputs inherit from their keys: [T, H, 512] -> fp32.

    Values are the rotated keys, so an output still turns with its query's position; the output
    projection was trained on what is left after turning back.
    """
    if cos_sin_cache.shape[-1] != rope_dim or o.shape[-1] != HEAD_DIM:
        raise ValueError(
            f"expected {rope_dim} rotary channels of {HEAD_DIM}, got a table of "
            f"{cos_sin_cache.shape[-1]} for heads of {o.shape[-1]}"
        )
    return rotate_tail(o.float(), positions, cos_sin_cache, inverse=True)
