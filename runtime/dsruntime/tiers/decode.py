"""Packed expert matrices to the dtype of the products, by table: one look-up a byte.

The tables are made in the target dtype: bf16 and fp32 hold every FP4 value exactly, and a scale is
a power of two, so the products are the same bits in whichever of the two they are taken.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.experts.fp4 import BLOCK, E2M1_VALUES, E8M0_BIAS

Bytes = npt.NDArray[np.uint8]

BASE_LEVELS = (-4.0, -1.0, 1.0, 4.0)
"""Value of each 2-bit code in units of the scale (docs/packs.md)."""


def base_into(codes: Bytes, scales: Bytes, out: torch.Tensor) -> torch.Tensor:
    """[N, K/4] base codes, [N, K/32] scales -> ``out`` [N, K]."""
    return _expand(_quads(out.dtype), codes, scales, out)


def fp4_into(codes: Bytes, scales: Bytes, out: torch.Tensor) -> torch.Tensor:
    """[N, K/2] FP4 codes, [N, K/32] scales -> ``out`` [N, K]."""
    return _expand(_pairs(out.dtype), codes, scales, out)


def _expand(table: torch.Tensor, codes: Bytes, scales: Bytes, out: torch.Tensor) -> torch.Tensor:
    flat = torch.from_numpy(codes).reshape(-1).to(torch.int32)
    torch.index_select(table, 0, flat, out=out.view(-1, table.shape[1]))
    factors = _scales(out.dtype).index_select(
        0, torch.from_numpy(scales).reshape(-1).to(torch.int32)
    )
    out.view(-1, BLOCK).mul_(factors[:, None])
    return out


@cache
def _quads(dtype: torch.dtype) -> torch.Tensor:
    """[256, 4]: the weights of each byte of base codes, lowest bits first."""
    byte = torch.arange(256)
    codes = torch.stack([(byte >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1)
    return torch.tensor(BASE_LEVELS, dtype=dtype)[codes]


@cache
def _pairs(dtype: torch.dtype) -> torch.Tensor:
    """[256, 2]: the weights of each byte of FP4 codes, low nibble first."""
    byte = torch.arange(256)
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=dtype)
    return values[torch.stack([byte & 15, byte >> 4], dim=-1)]


@cache
def _scales(dtype: torch.dtype) -> torch.Tensor:
    """[256]: the power of two of each e8m0 byte; 255 is NaN."""
    exponents = torch.arange(256, dtype=torch.float64) - E8M0_BIAS
    scales = torch.pow(torch.tensor(2.0, dtype=torch.float64), exponents)
    scales[255] = float("nan")
    return scales.to(dtype)
