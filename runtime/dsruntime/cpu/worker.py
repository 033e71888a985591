"""The worker that makes a DeepSeek-V4 model run on this CPU, before it loads it."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.worker.cpu_worker import CPUWorker

from dsruntime import __version__
from dsruntime.cpu.enable import enable

logger = init_logger("vllm.dsruntime")


class DeepseekV4Worker(CPUWorker):  # type: ignore[misc]  # vLLM is untyped to us
    """vLLM's CPU worker, which switches on what DeepSeek-V4 needs before anything else happens.

    `dsruntime.plugin` names this class in the configuration of DeepSeek-V4 models only, so other
    models never meet our operators or patches.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        # Not later: building a draft model imports numba, after which vLLM's kernel registry
        # trips over one of its objects while it scans all modules.
        summary = enable(vllm_config)
        logger.info("dsruntime %s: %s", __version__, summary)
        super().__init__(vllm_config, *args, **kwargs)
