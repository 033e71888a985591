"""The GPU worker with experts in tiers. Never run: there was no card to run it on."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu_worker import Worker

from dsruntime.kernels.method import DeviceExpertsMethod
from dsruntime.kernels.tiers import DeviceTiers
from dsruntime.tiers.hooks import TierHooks, method_in_place
from dsruntime.tiers.settings import read_settings

QUANTIZATION = "deepseek_v4_fp8"


class DeviceWorker(TierHooks, Worker):  # type: ignore[misc]  # vLLM is untyped to us
    """vLLM's GPU worker: the pool comes after graph capture, moves happen between steps.

    For both model runners: nothing here touches one. What it cannot do is repeat a step, which the
    base cache and the confidence gate need: the newer runner (V2) has no method for a pass that
    could be repeated, only its model and its captured graphs.
    """

    tiers: DeviceTiers

    def __init__(self, vllm_config: Any, local_rank: int, *args: Any, **kwargs: Any) -> None:
        settings = read_settings(vllm_config.additional_config)
        model = vllm_config.model_config.model
        self.tiers = DeviceTiers(settings, model, torch.device("cuda", local_rank))
        self._choose = chooser(self.tiers, vllm_config.model_config)
        super().__init__(vllm_config, local_rank, *args, **kwargs)

    def determine_available_memory(self) -> int:
        """As always; what a largest step takes for a while is kept from the pool, too.

        With a KV cache of a given size vLLM runs that step and reserves nothing for it.
        """
        torch.cuda.reset_peak_memory_stats(self.device)
        left: int = super().determine_available_memory()
        peak = torch.cuda.max_memory_allocated(self.device)
        self.tiers.headroom_bytes = max(0, peak - torch.cuda.memory_allocated(self.device))
        return left

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """As always, with our method for the experts of the target model."""
        self.tiers.device = self.device  # as vLLM settled it: not always the local rank's
        from vllm.model_executor.layers.quantization import get_quantization_config

        with method_in_place(get_quantization_config(QUANTIZATION), self._choose):
            super().load_model(*args, **kwargs)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """One step, then the pool's moves; they are not waited for."""
        result = super().execute_model(*args, **kwargs)
        self.tiers.after_step()
        return result


def chooser(tiers: DeviceTiers, model_config: Any) -> Any:
    """Ours for routed experts of the model's own layers; a draft's come after them and stay FP4."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.models.utils import extract_layer_index

    layers = model_config.hf_config.num_hidden_layers

    def choose(original: Any, config: Any, layer: Any, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts) and extract_layer_index(prefix) < layers:
            return DeviceExpertsMethod(layer.moe_config, model_config.dtype, tiers)
        return original(config, layer, prefix)

    return choose
