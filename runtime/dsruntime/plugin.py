"""The ``vllm.general_plugins`` entry point.

vLLM calls `register` in every process, before it knows the model. All it does is watch the CPU
platform settle a configuration: when that configuration is for a DeepSeek-V4 model, our worker
class is named in it and the scheduler's features are restored. Everything else happens in that
worker (`dsruntime.cpu.worker`), so no other model and no other platform is touched. On CUDA our
worker (`dsruntime.kernels.worker`) is named only where experts in tiers are asked for.
"""

from __future__ import annotations

import os
from typing import Any

from dsruntime.versions import require_supported

MODEL_TYPE = "deepseek_v4"
WORKER = "dsruntime.cpu.worker.DeepseekV4Worker"
TIERED_WORKER = "dsruntime.tiers.worker.TieredWorker"
DEVICE_WORKER = "dsruntime.kernels.worker.DeviceWorker"
TIERED_SCHEDULERS = {
    False: "dsruntime.tiers.scheduler.TieredScheduler",
    True: "dsruntime.tiers.scheduler.TieredAsyncScheduler",
}
_MARK = "_dsruntime_original"


def register() -> None:
    """Hook the CPU's or the CUDA platform. Idempotent; does nothing on other platforms.

    Raises:
        UnsupportedVllmError: with a vLLM whose internals we do not know; on CUDA, where we are
            needed only for experts in tiers, not before these are asked for.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        _hook(type(current_platform), settle_cuda)
        return
    if not current_platform.is_cpu():
        return
    import vllm

    require_supported(vllm.__version__)
    _hook(type(current_platform), settle)


def _hook(platform: Any, settling: Any) -> None:
    """Put ``settling(vllm_config, original)`` in the place of a platform's own."""
    if hasattr(platform, _MARK):
        return
    original = platform.check_and_update_config
    setattr(platform, _MARK, original)

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        settling(vllm_config, original)

    platform.check_and_update_config = classmethod(check_and_update_config)


def _logger() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.dsruntime")


def serves_deepseek_v4(vllm_config: Any) -> bool:
    """Whether this configuration is for a model of ours."""
    model = vllm_config.model_config
    return model is not None and getattr(model.hf_config, "model_type", None) == MODEL_TYPE


def worker_for(vllm_config: Any) -> str:
    """The worker that the additional configuration asks for, or the environment (`compat`).

    What the environment asks for is written into the configuration, where the workers read it.

    Raises:
        SettingsError: a key of ours that we do not know, or a value that makes no sense.
    """
    from dsruntime.tiers.settings import SettingsError, read_settings, with_environment

    vllm_config.additional_config, warnings = with_environment(
        vllm_config.additional_config, os.environ
    )
    for warning in warnings:
        _logger().warning("dsruntime: %s", warning)
    settings = read_settings(vllm_config.additional_config)
    if settings.experts == "native":
        return WORKER
    if vllm_config.parallel_config.enable_expert_parallel:
        raise SettingsError(
            f"additional-config: dsruntime.experts: {settings.experts} cannot spread experts over "
            "ranks: drop --enable-expert-parallel (tensor parallel shares each expert instead)"
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise SettingsError(
            f"additional-config: dsruntime.experts: {settings.experts} does not know stages of a "
            "pipeline: drop --pipeline-parallel-size (use --tensor-parallel-size)"
        )
    from dsruntime.tiers import metrics

    metrics.serve()
    return TIERED_WORKER


def name_scheduler(vllm_config: Any) -> None:
    """Where experts lie in tiers, the scheduler that can end one request without the engine."""
    config = vllm_config.scheduler_config
    if vllm_config.parallel_config.worker_cls == TIERED_WORKER and config.scheduler_cls is None:
        config.scheduler_cls = TIERED_SCHEDULERS[bool(config.async_scheduling)]


def settle(vllm_config: Any, original: Any) -> None:
    """vLLM's own settling of a configuration, with what DeepSeek-V4 needs around it."""
    if not serves_deepseek_v4(vllm_config):
        original(vllm_config)
        return
    from dsruntime.cpu.metadata_kernels import tolerate_strange_objects

    tolerate_strange_objects()
    if vllm_config.parallel_config.worker_cls == "auto":
        vllm_config.parallel_config.worker_cls = worker_for(vllm_config)
    asked = Scheduling.of(vllm_config)
    original(vllm_config)
    asked.restore(vllm_config)
    name_scheduler(vllm_config)


def settle_cuda(vllm_config: Any, original: Any) -> None:
    """On CUDA vLLM runs the model by itself; only experts in tiers need a worker of ours.

    Raises:
        SettingsError: a key of ours that we do not know, or what a GPU cannot do yet.
        UnsupportedVllmError: experts in tiers are asked for with a vLLM that we do not know.
    """
    parallel = vllm_config.parallel_config
    if serves_deepseek_v4(vllm_config) and parallel.worker_cls == "auto":
        worker = worker_for(vllm_config)
        if worker == TIERED_WORKER:
            import vllm

            from dsruntime.kernels.possible import require_possible
            from dsruntime.tiers.settings import read_settings

            require_supported(vllm.__version__)
            _require_plain_memory(vllm_config)
            require_possible(read_settings(vllm_config.additional_config))
            parallel.worker_cls = DEVICE_WORKER
    original(vllm_config)


def _require_plain_memory(vllm_config: Any) -> None:
    """Refuse what would discard or count our memory as if it were vLLM's own.

    Raises:
        SettingsError: names the option.
    """
    from dsruntime.tiers.settings import SettingsError

    if vllm_config.model_config.enable_sleep_mode:
        raise SettingsError(
            "additional-config: dsruntime.experts: sleep mode discards the 2-bit base, which is no "
            "parameter of the model: drop --enable-sleep-mode"
        )
    if os.environ.get("VLLM_ENABLE_STARTUP_PLAN", "0") not in ("", "0"):
        raise SettingsError(
            "VLLM_ENABLE_STARTUP_PLAN: a second start would give the KV cache the correction "
            "pool's memory: unset it"
        )


class Scheduling:
    """What the user (or vLLM's defaults) asked of the scheduler, before the platform's say.

    Without AMX the platform turns chunked prefill and prefix caching off for every MLA model,
    because its reference MLA kernels cannot do them. DeepSeek-V4's attention can: it addresses all
    its caches by slot and position.
    """

    def __init__(self, chunked_prefill: bool, prefix_caching: bool, batched_tokens: int) -> None:
        self.chunked_prefill = chunked_prefill
        self.prefix_caching = prefix_caching
        self.batched_tokens = batched_tokens

    @classmethod
    def of(cls, vllm_config: Any) -> Scheduling:
        """As the configuration stands."""
        return cls(
            vllm_config.scheduler_config.enable_chunked_prefill,
            vllm_config.cache_config.enable_prefix_caching,
            vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def restore(self, vllm_config: Any) -> None:
        """Put it back."""
        vllm_config.scheduler_config.enable_chunked_prefill = self.chunked_prefill
        vllm_config.cache_config.enable_prefix_caching = self.prefix_caching
        vllm_config.scheduler_config.max_num_batched_tokens = self.batched_tokens
        _logger().info(
            "dsruntime: for DeepSeek-V4 chunked prefill stays %s and prefix caching %s, whatever "
            "the CPU platform says of other MLA models",
            "on" if self.chunked_prefill else "off",
            "on" if self.prefix_caching else "off",
        )
