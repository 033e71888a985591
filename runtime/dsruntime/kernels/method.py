"""The expert method on a GPU: placeholders for the loader, planes from the pack, our kernels."""

from __future__ import annotations

from typing import Any

import torch

from dsruntime.kernels.moe import LayerPlanes, Workspace, moe
from dsruntime.kernels.tiers import DeviceTiers
from dsruntime.tiers.method import TieredExpertsMethod


def without_padding(topk_ids: torch.Tensor) -> torch.Tensor:
    """[T, k] ids with -1 for the rows that only fill up a captured graph.

    The router of this model on CUDA (`dsv4_topk`, vLLM 0.32) gives such rows experts like any
    other; without this they would be read for nobody, counted, and promoted. The mask is a buffer
    that does not move, so a captured graph reads that of its step.
    """
    from vllm.forward_context import get_forward_context, is_forward_context_available

    padding = get_forward_context().is_padding if is_forward_context_available() else None
    if padding is None:
        return topk_ids
    return topk_ids.masked_fill(padding[: topk_ids.shape[0], None], -1)


class DeviceExpertsMethod(TieredExpertsMethod):
    """One layer. vLLM calls `apply` inside an operator of its own that no compiler looks into."""

    def __init__(self, moe: Any, dtype: torch.dtype, tiers: DeviceTiers) -> None:
        super().__init__(moe, dtype, tiers)
        self._device_tiers = tiers
        self._loaded: tuple[LayerPlanes, Workspace] | None = None
        self._limit: float | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Read the layer's base from the pack to the device."""
        tiers = self._device_tiers
        tiers.open(self._dtype)
        planes = tiers.load(tiers.row(layer, self._experts))
        work = tiers.workspace(planes.planes, self.moe.experts_per_token, self._dtype)
        self._loaded, self._limit = (planes, work), layer.swiglu_limit
        tiers.layers += 1

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """[T, H] routed sum of x; x is not modified, shared experts are the runner's."""
        if self._loaded is None:
            raise RuntimeError(f"{layer.layer_name}: the experts have not been loaded")
        planes, work = self._loaded
        topk_ids = without_padding(topk_ids)
        return moe(x, topk_weights, topk_ids, planes, self._limit, work)
