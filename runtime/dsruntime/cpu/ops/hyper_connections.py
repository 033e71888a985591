"""Manifold-constrained hyper-connections: n residual streams, mixed before and after each block.

Formulas: DeepSeek-V4 paper section 2.2; the same as transformers' DeepseekV4HyperConnection and
DeepseekV4HyperHead.
"""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.registry import portable


def _pre_meta(
    x: torch.Tensor, hc_fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor,
    hc_mult: int, sinkhorn_iters: int, rms_eps: float, hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    tokens, _, width = x.shape
    return (
        x.new_empty((tokens, width)),
        x.new_empty((tokens, hc_mult), dtype=torch.float32),
        x.new_empty((tokens, hc_mult, hc_mult), dtype=torch.float32),
    )


def _mix(x: torch.Tensor, fn: torch.Tensor, rms_eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The streams as fp32 [T, n, D], and the RMS-normalized streams through ``fn`` [T, rows]."""
    streams = x.float()
    flat = streams.flatten(1)
    inverse_rms = torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + rms_eps)
    return streams, torch.nn.functional.linear(flat, fn) * inverse_rms


def sinkhorn(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """[T, n, n] made (nearly) doubly stochastic: softmax, then columns and rows by turns."""
    comb = torch.softmax(logits, dim=-1).add_(eps)
    comb.div_(comb.sum(dim=-2, keepdim=True).add_(eps))
    for _ in range(iterations - 1):
        comb.div_(comb.sum(dim=-1, keepdim=True).add_(eps))
        comb.div_(comb.sum(dim=-2, keepdim=True).add_(eps))
    return comb


@portable(
    "hc_pre_fused_cpu(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, int hc_mult, "
    "int sinkhorn_iters, float rms_eps, float hc_eps) -> (Tensor, Tensor, Tensor)",
    meta=_pre_meta,
)
def hc_pre_fused_cpu(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int,
    sinkhorn_iters: int,
    rms_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Collapse the streams into a block's input, and weigh its output.

    Args:
        x: [T, n, D] streams.
        hc_fn: [(2 + n) n, n D] fp32, rows for pre, post, comb; hc_scale [3], hc_base [(2 + n) n].

    Returns:
        block input [T, D] in x's dtype, post [T, n] fp32, comb [T, n, n] fp32.
    """
    streams, mixes = _mix(x, hc_fn, rms_eps)
    pre, post, comb = mixes.split([hc_mult, hc_mult, hc_mult * hc_mult], dim=-1)
    pre_base, post_base, comb_base = hc_base.split([hc_mult, hc_mult, hc_mult * hc_mult])
    pre = torch.sigmoid(pre * hc_scale[0] + pre_base) + hc_eps
    post = 2.0 * torch.sigmoid(post * hc_scale[1] + post_base)
    comb = (comb * hc_scale[2] + comb_base).unflatten(-1, (hc_mult, hc_mult))
    collapsed = torch.bmm(pre.unsqueeze(1), streams).squeeze(1)
    return collapsed.to(x.dtype), post, sinkhorn(comb, sinkhorn_iters, hc_eps)


def _post_meta(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    return torch.empty_like(residual)


@portable(
    "hc_post_fused_cpu(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor",
    meta=_post_meta,
)
def hc_post_fused_cpu(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """The new streams: ``y_j = sum_i comb_ij residual_i + post_j x``.

    Args:
        x: [T, D] block output; residual: [T, n, D]; post: [T, n]; comb: [T, n, n].
    """
    mixed = torch.bmm(comb.transpose(1, 2), residual.float())
    return mixed.addcmul_(post.unsqueeze(-1), x.float().unsqueeze(1)).to(residual.dtype)


def _head_meta(
    x: torch.Tensor, hc_fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor,
    hc_eps: float, norm_eps: float,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], x.shape[2]))


@portable(
    "hc_head_fused_cpu(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, float hc_eps, "
    "float norm_eps) -> Tensor",
    meta=_head_meta,
)
def hc_head_fused_cpu(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """Collapse the streams for the output head: x [T, n, D], hc_fn [n, n D] -> [T, D]."""
    streams, mixes = _mix(x, hc_fn, norm_eps)
    pre = torch.sigmoid(mixes * hc_scale + hc_base) + hc_eps
    return torch.bmm(pre.unsqueeze(1), streams).squeeze(1).to(x.dtype)
