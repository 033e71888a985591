"""Packed-weight products. Packing is a layout for AMX; here it only picks the compute dtype."""

from __future__ import annotations

import torch

from dsruntime.cpu.features import matmul_dtype
from dsruntime.cpu.ops.registry import portable


@portable("convert_weight_packed(Tensor weight) -> Tensor", meta=torch.empty_like)
def convert_weight_packed(weight: torch.Tensor) -> torch.Tensor:
    """A copy of the weight in the dtype products run fastest in; any shape, layout kept."""
    return weight.detach().to(matmul_dtype(), copy=True)


@portable(
    "bmm_cpu(Tensor(a!) out, Tensor mat1, Tensor mat2, bool is_vnni, Tensor? scale=None) -> ()"
)
def bmm_cpu(
    out: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    is_vnni: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """``out[b] = mat1[b] @ mat2[b]^T``: [B, M, K] by packed [B, N, K], grouped projections."""
    if scale is not None:
        raise NotImplementedError("bmm_cpu: scaled weights are not used by DeepSeek-V4")
    out.copy_(torch.bmm(mat1.to(mat2.dtype), mat2.transpose(1, 2)))
