"""The expert method that vLLM calls where experts lie in tiers."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.utils import set_weight_attrs

from dsruntime.experts import operator
from dsruntime.experts.method import OperatorExpertsMethod
from dsruntime.tiers.rank import RankTiers
from dsruntime.tiers.store import TierStore

_PLACEHOLDERS = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")


class TieredLayer(operator.LayerExperts):
    """A layer's experts that also tells the store who was asked for."""

    def __init__(self, store: TierStore[Any], row: int, limit: float | None) -> None:
        weights = store.layer(row)
        super().__init__(weights, limit, lambda: None)
        self._weights = weights
        self._store = store
        self._row = row

    def local(self, ids: torch.Tensor) -> torch.Tensor:
        """Counts who is asked for; -1 for those whose base is not at hand in this pass."""
        asked = ids.numpy()
        self._store.record(self._row, asked)
        self._store.ensure(self._row, asked)
        admitted = self._weights.admit(asked)
        return ids if admitted is asked else torch.from_numpy(admitted)


class TieredExpertsMethod(OperatorExpertsMethod):
    """Experts from the tiers. The checkpoint's expert tensors are never read: the pack has them."""

    def __init__(self, moe: Any, dtype: torch.dtype, tiers: RankTiers) -> None:
        super().__init__(moe)
        self._dtype = dtype
        self._tiers = tiers
        self._experts = 0

    def create_weights(self, layer: Any, num_experts: int, *_: Any, **__: Any) -> None:
        """Parameters of no bytes under the names that the loader looks for."""
        self._experts = num_experts
        for name in _PLACEHOLDERS:
            empty = torch.nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
            set_weight_attrs(empty, {"weight_loader": lambda *_, **__: True})
            layer.register_parameter(name, empty)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Read the layer's base from the pack; attach it to the operator."""
        store = self._tiers.open(self._dtype)
        row = self._tiers.row(layer, self._experts)
        operator.attach(layer.layer_name, TieredLayer(store, row, layer.swiglu_limit))
        self._tiers.layers += 1
