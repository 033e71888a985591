"""FP4 expert weights as the checkpoint stores them: e2m1 codes, one e8m0 scale per 32 along K."""

from __future__ import annotations

from functools import cache

import torch

BLOCK = 32
"""Weights per scale, along the input dimension."""

E8M0_BIAS = 127

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0..7; code + 8 is the negative (OCP Microscaling Formats v1.0)."""


@cache
def _pairs() -> torch.Tensor:
    """[256, 2] fp32: the two weights of each byte, low nibble first."""
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=-1)


@cache
def _scales() -> torch.Tensor:
    """[256] fp32: the power of two of each e8m0 byte (255 is NaN)."""
    exponents = torch.arange(256, dtype=torch.float64) - E8M0_BIAS
    scales = torch.pow(torch.tensor(2.0, dtype=torch.float64), exponents)
    scales[255] = float("nan")
    return scales.to(torch.float32)


def decode(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weights of one matrix.

    Args:
        codes: [N, K / 2] uint8, two weights a byte; scales: [N, K / 32] uint8.
        dtype: bf16 and fp32 both hold every FP4 value with a normal scale exactly.

    Returns:
        [N, K] in dtype.
    """
    rows, half = codes.shape
    weights = _pairs().index_select(0, codes.reshape(-1).to(torch.int32))
    weights = weights.view(rows, half * 2 // BLOCK, BLOCK)
    factors = _scales().index_select(0, scales.reshape(-1).to(torch.int32)).view(rows, -1, 1)
    return weights.mul_(factors).view(rows, half * 2).to(dtype)
