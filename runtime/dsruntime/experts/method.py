"""The expert method vLLM calls for DeepSeek-V4's FP4 routed experts."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.utils import set_weight_attrs

from dsruntime.experts import operator
from dsruntime.experts.fp4 import BLOCK
from dsruntime.experts.weights import Budget, Fp4Weights, Kept


class OperatorExpertsMethod(FusedMoEMethodBase):  # type: ignore[misc]  # vLLM is untyped to us
    """What all expert methods of ours share: they run through the one opaque operator."""

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """None: no modular kernel reads one."""
        return

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
        result: torch.Tensor = torch.ops.dsruntime.routed_experts(
            x, topk_weights, topk_ids, layer.layer_name
        )
        return result


class Fp4ExpertsMethod(OperatorExpertsMethod):
    """FP4 block-32 experts on a CPU.

    Loads the checkpoint's tensors by vLLM's own loader (which shards by intermediate size under
    tensor parallelism and by expert under expert parallelism), and runs them through one opaque
    operator that returns the un-reduced routed sum: the runner reduces, and adds shared experts.
    """

    def __init__(self, moe: Any, dtype: torch.dtype, budget: Budget) -> None:
        super().__init__(moe)
        self.dtype = dtype
        self._budget = budget

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Parameters named as the loader expects them, holding checkpoint bytes."""
        rows = 2 * intermediate_size_per_partition
        columns = intermediate_size_per_partition
        shapes = {
            "w13_weight": (num_experts, rows, hidden_size // 2),
            "w13_weight_scale": (num_experts, rows, hidden_size // BLOCK),
            "w2_weight": (num_experts, hidden_size, columns // 2),
            "w2_weight_scale": (num_experts, hidden_size, columns // BLOCK),
        }
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(
                torch.zeros(shape, dtype=torch.uint8), requires_grad=False
            )
            set_weight_attrs(parameter, extra_weight_attrs)
            if name.endswith("_scale"):
                # how vLLM's loader recognizes block scales
                set_weight_attrs(parameter, {"quant_method": "block"})
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Attach the loaded bytes to the operator under the layer's name."""
        source = Fp4Weights(
            layer.w13_weight.data,
            layer.w13_weight_scale.data,
            layer.w2_weight.data,
            layer.w2_weight_scale.data,
            self.dtype,
        )
        weights = Kept(source, self._budget)
        limit = layer.swiglu_limit
        operator.attach(
            layer.layer_name, operator.LayerExperts(weights, limit, lambda: layer.expert_map)
        )
