"""Switching on, in one worker process, all that a DeepSeek-V4 model needs on this CPU."""

from __future__ import annotations

from typing import Any

from dsruntime.cpu import metadata_kernels
from dsruntime.cpu.features import CpuFeatures, detect
from dsruntime.cpu.ops import define_missing
from dsruntime.cpu.patches import PATCHES, Patch, Situation, apply_needed


def enable(vllm_config: Any) -> str:
    """Define missing operators and kernels, apply needed patches; one line saying what and why."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    current_platform.import_kernels()  # what the build has must be loaded to see what it lacks
    cpu = detect()
    defined = define_missing()
    kernels = [] if HAS_TRITON else metadata_kernels.register_missing()
    situation = Situation(
        cpu=cpu,
        portable_ops=frozenset(defined),
        ranks=vllm_config.parallel_config.world_size,
        speculative_tokens=vllm_config.num_speculative_tokens,
    )
    summary = describe(cpu, len(defined), len(kernels), apply_needed(PATCHES, situation))
    if vllm_config.quant_config is None:
        summary += (
            "; WARNING: this checkpoint's experts are not quantized, and vLLM's CPU path for such "
            "experts ignores swiglu_limit: its answers can be wrong. Serve the official FP8 + FP4 "
            "checkpoint instead"
        )
    return summary


def describe(cpu: CpuFeatures, operators: int, kernels: int, patches: list[Patch]) -> str:
    """What was enabled and why, for the log."""
    why = "this CPU has no AMX" if not cpu.amx_tile else "vLLM's own kernels run (AMX)"
    dtype = str(cpu.compute_dtype).removeprefix("torch.")
    fixes = "; ".join(f"{patch.name} ({patch.why})" for patch in patches)
    return (
        f"DeepSeek-V4 on the CPU: {why}; {operators} portable operators, {kernels} metadata "
        f"kernels in place of Triton, matrix products in {dtype}; fixes: {fixes}"
    )
