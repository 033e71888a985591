"""Routed experts."""

from __future__ import annotations

from typing import Any

from dsruntime.cpu.patches.base import Patch, Situation


def take_fp4_experts(situation: Situation) -> None:
    """vLLM has no FP4 expert backend for CPUs without AMX: give its config ours."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
    from vllm.models.deepseek_v4.quant_config import DeepseekV4FP8Config

    from dsruntime.experts.method import Fp4ExpertsMethod
    from dsruntime.experts.weights import default_budget

    original = DeepseekV4FP8Config.get_quant_method
    dtype = situation.cpu.compute_dtype
    budget = default_budget(situation.ranks)

    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        ours = (
            isinstance(layer, RoutedExperts)
            and self.expert_dtype == "fp4"
            and self.moe_quant_algo != "NVFP4"
            and not is_layer_skipped(
                prefix=prefix,
                ignored_layers=self.ignored_layers,
                fused_mapping=self.packed_modules_mapping,
            )
        )
        if ours:
            return Fp4ExpertsMethod(layer.moe_config, dtype, budget)
        return original(self, layer, prefix)

    DeepseekV4FP8Config.get_quant_method = get_quant_method


PATCHES = (
    Patch(
        "fp4-experts",
        "vLLM has no FP4 experts for CPUs without AMX",
        needed=lambda s: not s.cpu.amx_tile,
        apply=take_fp4_experts,
    ),
)
