"""Expert routing: scores, the bias that only chooses, hash layers that choose by token.

Formulas: DeepSeek-V4 paper section 2.1; the same as transformers' DeepseekV4TopKRouter and
DeepseekV4HashRouter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsruntime.cpu.ops.registry import portable

SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrtsoftplus": lambda logits: torch.nn.functional.softplus(logits).sqrt(),
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(dim=-1),
}


def _scores(logits: torch.Tensor, scoring_func: str) -> torch.Tensor:
    if scoring_func not in SCORES:
        raise ValueError(f"unknown scoring_func {scoring_func!r}; known: {', '.join(SCORES)}")
    return SCORES[scoring_func](logits.float())


def _renormalized(weights: torch.Tensor) -> torch.Tensor:
    # the same guard against an all-zero row as transformers' routers
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)


def _biased_meta(
    hidden_states: torch.Tensor, gating_output: torch.Tensor, correction_bias: torch.Tensor,
    topk: int, *_args: object,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = (gating_output.shape[0], topk)
    return (
        gating_output.new_empty(shape, dtype=torch.float32),
        gating_output.new_empty(shape, dtype=torch.int32),
    )


@portable(
    "biased_topk_cpu(Tensor hidden_states, Tensor gating_output, Tensor correction_bias, int topk, "
    "bool renormalize, str scoring_func, int num_fused_shared_experts, "
    "float? routed_scaling_factor, bool apply_routed_scaling_factor_on_output) -> (Tensor, Tensor)",
    meta=_biased_meta,
)
def biased_topk_cpu(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk: int,
    renormalize: bool,
    scoring_func: str,
    num_fused_shared_experts: int,
    routed_scaling_factor: float | None,
    apply_routed_scaling_factor_on_output: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose by ``score + bias``, weigh by ``score``.

    Args:
        gating_output: [T, E] router logits; correction_bias: [E].

    Returns:
        weights [T, k] fp32 (renormalized and scaled as asked), expert ids [T, k] int32.
    """
    _no_fused_shared(num_fused_shared_experts)
    scores = _scores(gating_output, scoring_func)
    chosen = (scores + correction_bias.float()).topk(topk, dim=-1).indices
    weights = scores.gather(1, chosen)
    if renormalize:
        weights = _renormalized(weights)
    if apply_routed_scaling_factor_on_output and routed_scaling_factor is not None:
        weights = weights * routed_scaling_factor
    return weights, chosen.to(torch.int32)


def _hash_meta(
    gating_output: torch.Tensor, tid2eid: torch.Tensor, topk: int, *_args: object
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (gating_output.shape[0], topk)
    return (
        gating_output.new_empty(shape, dtype=torch.float32),
        gating_output.new_empty(shape, dtype=torch.int32),
    )


@portable(
    "hash_topk_cpu(Tensor gating_output, Tensor tid2eid, int topk, str scoring_func, "
    "int num_fused_shared_experts, int num_experts, float routed_scaling_factor) "
    "-> (Tensor, Tensor)",
    meta=_hash_meta,
)
def hash_topk_cpu(
    gating_output: torch.Tensor,
    tid2eid: torch.Tensor,
    topk: int,
    scoring_func: str,
    num_fused_shared_experts: int,
    num_experts: int,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token decides the experts (tid2eid [T, k], its rows already picked); the gate weighs."""
    _no_fused_shared(num_fused_shared_experts)
    chosen = tid2eid[:, :topk]
    weights = _scores(gating_output, scoring_func).gather(1, chosen.to(torch.int64))
    return _renormalized(weights) * routed_scaling_factor, chosen.to(torch.int32)


def _no_fused_shared(count: int) -> None:
    if count:
        raise NotImplementedError("shared experts fused into routing are not used on CPUs")
