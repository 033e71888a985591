"""The routed sum: what a token's experts contribute, before any reduction across ranks."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from dsruntime.experts.weights import ExpertWeights


def swiglu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """``silu(min(gate, L)) * clamp(up, -L, L)`` of [..., 2 I] -> [..., I]; no clamp without L.

    The clamp comes before the activation (transformers' DeepseekV4Experts._apply_gate).
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate = gate.clamp(max=limit)
        up = up.clamp(min=-limit, max=limit)
    return silu(gate) * up


def routed_sum(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    experts: ExpertWeights,
    limit: float | None,
) -> torch.Tensor:
    """``sum_k w_k expert_k(x)`` per token, over the experts that are local.

    Each expert is asked once, for all its tokens together.

    Args:
        x: [T, H], not modified; topk_weights: [T, k] fp32.
        topk_ids: [T, k] local expert numbers; below zero: padding, or another rank's expert.

    Returns:
        [T, H] in x's dtype; zero for a token without local experts.
    """
    k = topk_ids.shape[1]
    wide = x.to(experts.dtype)
    out = torch.zeros(x.shape, dtype=torch.float32)
    flat = topk_ids.reshape(-1)
    pairs = torch.argsort(flat, stable=True)
    found, counts = torch.unique_consecutive(flat[pairs], return_counts=True)
    end = 0
    for expert, count in zip(found.tolist(), counts.tolist(), strict=True):
        start, end = end, end + count
        if expert < 0:
            continue
        pair = pairs[start:end]
        tokens = torch.div(pair, k, rounding_mode="floor")
        hidden = swiglu(experts.through_gate_up(wide.index_select(0, tokens), expert), limit)
        result = experts.through_down(hidden, expert).float()
        out.index_add_(0, tokens, result.mul_(topk_weights.reshape(-1, 1)[pair]))
    return out.to(x.dtype)
