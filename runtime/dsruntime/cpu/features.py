"""What the CPU can do, as a value, so that every gate can be tested without that CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CpuFeatures:
    """The instruction sets that decide which path runs.

    ``amx_tile``: vLLM's own DeepSeek-V4 kernels work.
    ``bf16_dot``: bf16 matrix products run natively. Without it oneDNN emulates them, nine times
    slower than fp32 (measured, AVX2: 9.8 against 92 GFLOP/s per core).
    """

    amx_tile: bool
    bf16_dot: bool

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which weights are kept for matrix products."""
        return torch.bfloat16 if self.bf16_dot else torch.float32


def detect() -> CpuFeatures:
    """The features of this machine, as torch reports them."""
    return CpuFeatures(
        amx_tile=bool(torch.cpu._is_amx_tile_supported()),
        bf16_dot=bool(torch.cpu._is_avx512_bf16_supported()),
    )


def matmul_dtype() -> torch.dtype:
    """`CpuFeatures.compute_dtype` of this machine."""
    return detect().compute_dtype
