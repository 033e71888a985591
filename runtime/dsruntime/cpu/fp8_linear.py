"""FP8 128x128 dense layers on CPUs without AMX: decoded once after loading, then plain products."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from dsruntime.cpu.features import matmul_dtype
from dsruntime.cpu.ops.fp8 import decode_e4m3, power_of_two

E8M0_BIAS = 127


def decode_block_scaled(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """The weights of an FP8 matrix with one scale per block.

    Args:
        weight: [N, K] e4m3; scale: [ceil(N / rows), ceil(K / columns)] e8m0, uint8 (the same
            bytes) or a float type; block: (rows, columns).
    """
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        factors = power_of_two(scale.view(torch.uint8).to(torch.int32) - E8M0_BIAS)
    else:
        factors = scale.float()
    rows, columns = weight.shape
    factors = factors.repeat_interleave(block[0], dim=0)[:rows]
    factors = factors.repeat_interleave(block[1], dim=1)[:, :columns]
    return decode_e4m3(weight).mul_(factors).to(dtype)


class PortableFp8BlockKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """W8A16: vLLM's block kernel interface over decoded weights.

    Decoding doubles (bf16) or quadruples (fp32) the memory of dense layers; in exchange decode
    steps run at the speed of plain products.
    """

    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Any CPU; it stands last in vLLM's list, so a kernel that needs AMX wins where it can."""
        if not current_platform.is_cpu():
            return False, "requires a CPU"
        return True, None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        """Any block shape: decoding does not depend on it."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the FP8 weight by its decoded form, and drop the scales."""
        params = self._get_layer_params(layer)
        shape = self.weight_group_shape
        decoded = decode_block_scaled(
            params.weight.data, params.block_scale.data, (shape.row, shape.col), matmul_dtype()
        )
        replace_parameter(layer, params.WEIGHT, torch.nn.Parameter(decoded, requires_grad=False))
        empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        replace_parameter(layer, params.block_scale_attr, empty)

    def apply_weights(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        **_kwargs: Any,
    ) -> torch.Tensor:
        """x [..., K] @ weight^T in the weight's dtype, back in x's."""
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        wide_bias = None if bias is None else bias.to(weight.dtype)
        return torch.nn.functional.linear(x.to(weight.dtype), weight, wide_bias).to(x.dtype)

    def apply_block_scaled_mm(self, *_operands: torch.Tensor) -> torch.Tensor:
        """Not reached: `apply_weights` does the whole product."""
        raise NotImplementedError
