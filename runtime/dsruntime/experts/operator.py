"""``dsruntime::routed_experts``: one layer's experts as one opaque operator.

Opaque because a compiler must not look inside: which experts run depends on the data. The layer is
named by a string, as vLLM does for attention layers, since an operator cannot carry an object.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsruntime.experts.compute import routed_sum
from dsruntime.experts.weights import ExpertWeights

NAMESPACE = "dsruntime"


class LayerExperts:
    """What one layer needs at run time: weights, the clamp, and which experts are local."""

    def __init__(
        self,
        weights: ExpertWeights,
        limit: float | None,
        expert_map: Callable[[], torch.Tensor | None],
    ) -> None:
        self.weights = weights
        self.limit = limit
        self._expert_map = expert_map  # asked for each time: expert placement may change

    def local(self, ids: torch.Tensor) -> torch.Tensor:
        """Global ids -> local numbers; -1 for padding and for experts of other ranks."""
        expert_map = self._expert_map()
        if expert_map is None:
            return ids
        mapped = expert_map.index_select(0, ids.clamp(min=0).reshape(-1)).view(ids.shape)
        return torch.where(ids >= 0, mapped.to(ids.dtype), ids)


_layers: dict[str, LayerExperts] = {}
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def attach(name: str, layer: LayerExperts) -> None:
    """Make ``layer`` what the operator runs for ``name`` (a later model may reuse a name)."""
    _layers[name] = layer


def _routed_experts(
    x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str
) -> torch.Tensor:
    layer = _layers[layer_name]
    return routed_sum(x, topk_weights, layer.local(topk_ids), layer.weights, layer.limit)


def _shape(
    x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str
) -> torch.Tensor:
    return torch.empty_like(x)


if not hasattr(torch.ops.dsruntime, "routed_experts"):
    _library.define(
        "routed_experts(Tensor x, Tensor topk_weights, Tensor topk_ids, str layer_name) -> Tensor"
    )
    _library.impl("routed_experts", _routed_experts, "CPU")
    _library.impl("routed_experts", _shape, "Meta")
