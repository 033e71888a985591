"""The number formats of a DeepSeek-V4 checkpoint: FP8 in 128x128 blocks, FP4 in blocks of 32.

Both scales are e8m0 bytes: ``2 ** (byte - 127)``. Formats: OCP Microscaling Formats v1.0 (e2m1,
e8m0), OCP 8-bit floating point (e4m3, largest finite 448).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

FP8_BLOCK = 128
FP4_BLOCK = 32
E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0..7; bit 3 is the sign."""

_SMALLEST = 2.0**-100  # keeps the exponent of an all-zero block representable


def scale_exponents(amax: Tensor, largest: float) -> Tensor:
    """Exponents (int32) of the smallest powers of two under which ``amax`` fits ``largest``.

    ``ceil(log2(amax / largest))``, read from the float's own exponent so that no rounded logarithm
    moves it across an integer. Rounding up means nothing is clipped, and quantizing a value that
    is already quantized gives the same value again.
    """
    mantissa, exponent = torch.frexp(amax.float().clamp(min=_SMALLEST) / largest)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def _power(exponents: Tensor) -> Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def _to_e8m0(exponents: Tensor) -> Tensor:
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _from_e8m0(scales: Tensor) -> Tensor:
    return _power(scales.view(torch.uint8).to(torch.int32) - 127)


def _fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> zero-padded view [n, 128, k, 128] and its exponents [n, k]."""
    rows, columns = (-(-size // FP8_BLOCK) for size in weight.shape)
    pad = (0, columns * FP8_BLOCK - weight.shape[1], 0, rows * FP8_BLOCK - weight.shape[0])
    blocks = torch.nn.functional.pad(weight.float(), pad)
    blocks = blocks.view(rows, FP8_BLOCK, columns, FP8_BLOCK)
    return blocks, scale_exponents(blocks.abs().amax(dim=(1, 3)), E4M3_MAX)


def fp8_encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as e4m3 codes with one scale per 128x128 block.

    Args:
        weight: [N, K], any float type.

    Returns:
        codes [N, K] float8_e4m3fn, scales [ceil(N/128), ceil(K/128)] float8_e8m0fnu.
    """
    blocks, exponents = _fp8_blocks(weight)
    codes = blocks * _power(-exponents)[:, None, :, None]
    codes = codes.reshape(blocks.shape[0] * FP8_BLOCK, -1)[: weight.shape[0], : weight.shape[1]]
    return codes.to(torch.float8_e4m3fn).contiguous(), _to_e8m0(exponents)


def fp8_decode(codes: Tensor, scales: Tensor) -> Tensor:
    """codes [N, K] float8_e4m3fn and their block scales -> [N, K] fp32, exact."""
    factors = _from_e8m0(scales).repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return codes.float() * factors[: codes.shape[0], : codes.shape[1]]


def fp8_round(weight: Tensor) -> Tensor:
    """The nearest values that FP8 128x128 can hold: ``fp8_decode(*fp8_encode(weight))``, fp32."""
    return fp8_decode(*fp8_encode(weight))


def _snap_e2m1(scaled: Tensor) -> Tensor:
    """Nearest e2m1 values, ties to the even code. ``|scaled| <= 6``."""
    magnitude = scaled.abs()
    step = torch.where(magnitude < 2.0, 0.5, torch.where(magnitude < 4.0, 1.0, 2.0))
    return torch.round(scaled / step) * step


def _fp4_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[..., K] -> values in units of the scale [..., K/32, 32] (snapped), exponents [..., K/32]."""
    if weight.shape[-1] % FP4_BLOCK:
        raise ValueError(f"FP4 needs rows of a multiple of {FP4_BLOCK}, not {weight.shape[-1]}")
    blocks = weight.float().reshape(*weight.shape[:-1], -1, FP4_BLOCK)
    exponents = scale_exponents(blocks.abs().amax(dim=-1), E2M1_MAX)
    return _snap_e2m1(blocks * _power(-exponents)[..., None]), exponents


def fp4_encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as e2m1 codes with one scale per 32 weights of a row.

    Args:
        weight: [N, K], K a multiple of 32.

    Returns:
        codes [N, K/2] int8, two weights a byte, low nibble first; scales [N, K/32] float8_e8m0fnu.
    """
    snapped, exponents = _fp4_blocks(weight)
    midpoints = torch.tensor([(a + b) / 2 for a, b in pairwise(E2M1)])
    codes = torch.bucketize(snapped.abs().contiguous(), midpoints)
    codes = (codes + 8 * torch.signbit(snapped)).to(torch.uint8).flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed.view(torch.int8), _to_e8m0(exponents)


def fp4_decode(codes: Tensor, scales: Tensor) -> Tensor:
    """codes [N, K/2] int8 or uint8 and scales [N, K/32] -> [N, K] fp32, exact."""
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    raw = codes.view(torch.uint8).to(torch.int32)
    values = table[torch.stack([raw & 15, raw >> 4], dim=-1)].flatten(-2)
    return values * _from_e8m0(scales).repeat_interleave(FP4_BLOCK, -1)


def fp4_round(weight: Tensor) -> Tensor:
    """The nearest values that FP4 block-32 can hold, fp32; [..., K] of any rank."""
    snapped, exponents = _fp4_blocks(weight)
    return (snapped * _power(exponents)[..., None]).flatten(-2)


def two_bit_round(weight: Tensor) -> Tensor:
    """The weights under the 2-bit code, fp32: FP4 scale kept, magnitudes <= 2 -> 1, above -> 4.

    Signs are kept, zeros by their sign bit; ``weight`` is brought to FP4 first.
    """
    snapped, exponents = _fp4_blocks(weight)
    magnitude = torch.where(snapped.abs() <= 2.0, 1.0, 4.0)
    return (torch.copysign(magnitude, snapped) * _power(exponents)[..., None]).flatten(-2)
