"""Dense layers."""

from __future__ import annotations

from typing import Any

import torch

from dsruntime.cpu.patches.base import Patch, Situation


def offer_fp8_blocks(_situation: Situation) -> None:
    """vLLM's FP8 block kernels for CPUs need AMX tiles; ours stands behind them in its list."""
    from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS
    from vllm.platforms import PlatformEnum

    from dsruntime.cpu.fp8_linear import PortableFp8BlockKernel

    _POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU].append(PortableFp8BlockKernel)


class WideLinear:
    """bf16 layers computed in fp32: ``layer.cpu_linear`` as vLLM calls it.

    The fp32 copy is made on first use: vLLM prepares embeddings too, which no product ever reads.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._narrow: torch.Tensor | None = weight
        self._wide: torch.Tensor | None = None

    def __call__(
        self, x: torch.Tensor, _weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [..., K] -> [..., N] in x's dtype."""
        if self._wide is None:
            assert self._narrow is not None
            self._wide, self._narrow = self._narrow.float(), None
        wide_bias = None if bias is None else bias.float()
        return torch.nn.functional.linear(x.float(), self._wide, wide_bias).to(x.dtype)


def widen_bf16(_situation: Situation) -> None:
    """oneDNN has no bf16 product for AVX2: vLLM falls back to one that is nine times slower."""
    from vllm.model_executor.layers import utils

    original = utils.dispatch_cpu_unquantized_gemm

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or weight.dtype is not torch.bfloat16:
            original(layer, remove_weight)
            return
        layer.cpu_linear = WideLinear(weight.data)
        if remove_weight:
            layer.weight = torch.nn.Parameter(
                torch.empty(0, dtype=weight.dtype), requires_grad=False
            )

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


PATCHES = (
    Patch(
        "fp8-blocks",
        "vLLM's FP8 128x128 kernels for CPUs need AMX",
        needed=lambda s: not s.cpu.amx_tile,
        apply=offer_fp8_blocks,
    ),
    Patch(
        "fp32-products",
        "bf16 products are emulated on this CPU",
        needed=lambda s: not s.cpu.bf16_dot,
        apply=widen_bf16,
    ),
)
