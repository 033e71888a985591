"""FP8 (e4m3) with power-of-two scales, as the DeepSeek-V4 caches store it."""

from __future__ import annotations

from functools import cache

import torch

E4M3_MAX = 448.0
"""Largest finite e4m3 value (OCP 8-bit floating point, 2023)."""

SCALE_FLOOR = 1e-4
"""Smallest block maximum that a scale is made for; vLLM's fused_compress_quant_cache.py."""


@cache
def e4m3_values() -> torch.Tensor:
    """[256] fp32: the value of each e4m3 byte.

    A table look-up reads faster than torch's scalar fp8 conversion on CPUs (3x, AVX2).
    """
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 bytes (uint8 or float8, any shape) as fp32."""
    flat = codes.reshape(-1).view(torch.uint8).to(torch.int32)
    return e4m3_values().index_select(0, flat).view(codes.shape)


def encode_e4m3(values: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """``values / 2**exponents`` as e4m3, saturating; exponents broadcast against values."""
    scaled = (values * power_of_two(-exponents)).clamp_(-E4M3_MAX, E4M3_MAX)
    return scaled.to(torch.float8_e4m3fn)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """``2**exponents`` exactly, int32 to fp32, for exponents of normal floats (-126..127)."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


def scale_exponents(amax: torch.Tensor) -> torch.Tensor:
    """The exponents (int32) of the smallest power-of-two scales that hold ``amax`` in e4m3.

    ``ceil(log2(max(amax, 1e-4) / 448))``, taken from the float's own exponent so that no rounding
    of a logarithm can move it across an integer.
    """
    mantissa, exponent = torch.frexp(amax.clamp(min=SCALE_FLOOR) / E4M3_MAX)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)  # 0.5 * 2**e is a power of two
