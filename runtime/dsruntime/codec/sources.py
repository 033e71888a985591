"""Other checkpoint formats brought to FP4 block-32.

Scale exponent clamp(round(log2(amax / 6)), -127, 127), then snap to e2m1, ties to even and beyond 6
to 6 (`model.md` of the reference runtime's facts; OCP MX rounding). The sign bit of a source value
is kept, also where it becomes zero. Only values that are *exactly* zero in the source may carry no
sign worth keeping: where more than 95 % of a matrix's zeros have one sign, they are signed like a
chessboard, because zeros decode to -1 or +1 in the base and one-signed ones would be a bias.

Values are taken as float64, in which every format here is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsruntime.codec.bits import formula
from dsruntime.codec.fp4 import BLOCK, E2M1, NAN_SCALE, scale_values, unpack_nibbles
from dsruntime.codec.loops import compile_loop

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 128
_ONE_SIGNED = 0.95
_SQRT_HALF = math.sqrt(0.5)


class NotFiniteError(ValueError):
    """The source holds NaN or infinity."""


@dataclass(frozen=True)
class Fp4Matrix:
    """[N, K/2] codes and [N, K/32] scales."""

    codes: Bytes
    scales: Bytes


RowReader = Callable[[int, int], Doubles]
"""Rows a..b of the source as [b - a, K] float64."""


def _e4m3_values() -> Doubles:
    """Value of each float8_e4m3fn byte; 0x7f and 0xff are NaN (OCP 8-bit floating point 1.0)."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    magnitude = np.where(
        exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7)
    )
    magnitude[(byte & 127) == 127] = np.nan
    return np.where((byte & 128) != 0, -magnitude, magnitude).astype(np.float64)


E4M3 = _e4m3_values()


def bf16_rows(weight: npt.NDArray[np.uint16]) -> RowReader:
    """[N, K] BF16 bit patterns."""

    def rows(a: int, b: int) -> Doubles:
        wide = weight[a:b].astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)

    return rows


def fp8_rows(weight: Bytes, scale: npt.NDArray[np.generic], block: int = 128) -> RowReader:
    """[N, K] e4m3 bytes; one scale per `block` x `block`: e8m0 bytes or values."""
    values = (
        scale_values(scale.astype(np.uint8))
        if scale.dtype == np.uint8
        else scale.astype(np.float64)
    )

    def rows(a: int, b: int) -> Doubles:
        per_row = values[np.arange(a, b) // block]
        spread: Doubles = np.repeat(per_row, block, axis=1)[:, : weight.shape[1]]
        return np.multiply(E4M3[weight[a:b]], spread)

    return rows


def nvfp4_rows(codes: Bytes, scale: Bytes, scale2: float) -> RowReader:
    """[N, K/2] e2m1 codes, [N, K/16] e4m3 scales, one factor for the matrix."""

    def rows(a: int, b: int) -> Doubles:
        units = E2M1[unpack_nibbles(codes[a:b])].astype(np.float64)
        return units * np.repeat(E4M3[scale[a:b]] * scale2, 16, axis=1)

    return rows


def to_fp4(read: RowReader, n: int, k: int) -> Fp4Matrix:
    """Quantise an [n, k] source, a few rows at a time.

    Raises:
        NotFiniteError: a value is NaN or infinite.
    """
    codes, scales = np.empty((n, k // 2), np.uint8), np.empty((n, k // BLOCK), np.uint8)
    zeros = np.zeros(2, np.int64)
    for a in range(0, n, _ROWS_AT_ONCE):
        rows = read(a, min(a + _ROWS_AT_ONCE, n))
        if not np.isfinite(rows).all():
            raise NotFiniteError(f"NaN or infinity in rows {a}..{a + len(rows)}")
        b = a + len(rows)
        _quantise(rows.reshape(-1), codes[a:b].reshape(-1), scales[a:b].reshape(-1))
        exact = rows == 0
        negative = int(np.count_nonzero(np.signbit(rows[exact])))
        zeros += (int(np.count_nonzero(exact)) - negative, negative)
    if zeros.max() > _ONE_SIGNED * zeros.sum():
        _sign_zeros_like_a_chessboard(read, codes)
    return Fp4Matrix(codes, scales)


def nan_scales(scales: Bytes) -> int:
    """How many blocks have the scale that means NaN."""
    return int(np.count_nonzero(scales == NAN_SCALE))


def _sign_zeros_like_a_chessboard(read: RowReader, codes: Bytes) -> None:
    n, k = codes.shape[0], codes.shape[1] * 2
    for a in range(0, n, _ROWS_AT_ONCE):
        b = min(a + _ROWS_AT_ONCE, n)
        exact = read(a, b) == 0
        odd = (np.arange(a, b)[:, None] + np.arange(k)[None, :]) & 1
        signs = (exact * odd).astype(np.uint8) << 3
        mask = np.where(exact, 0x7, 0xF).astype(np.uint8)
        part = codes[a:b]
        part &= mask[:, 0::2] | (mask[:, 1::2] << 4)
        part |= signs[:, 0::2] | (signs[:, 1::2] << 4)


@formula
def _exponent(amax: float) -> int:
    """clamp(round(log2(amax / 6)), -127, 127); no ties, since 2**(e + 1/2) is irrational."""
    if amax == 0.0:
        return -127
    mantissa, exponent = math.frexp(amax / 6.0)
    rounded = exponent if mantissa > _SQRT_HALF else exponent - 1
    return min(max(rounded, -127), 127)


@formula
def _snap(y: Any) -> Any:
    """Magnitude code of |y|: nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code."""
    return (
        (y > 0.25) * 1
        + (y >= 0.75) * 1
        + (y > 1.25) * 1
        + (y >= 1.75) * 1
        + (y > 2.5) * 1
        + (y >= 3.5) * 1
        + (y > 5.0) * 1
    )


def _quantise_loop(values: Doubles, codes: Bytes, scales: Bytes) -> None:
    for block in range(scales.size):
        at = block * 32
        amax = 0.0
        for i in range(32):
            amax = max(amax, abs(values[at + i]))
        exponent = _exponent(amax)
        scales[block] = exponent + 127
        unit = math.ldexp(1.0, -exponent)
        for i in range(16):
            even, odd = values[at + 2 * i], values[at + 2 * i + 1]
            low = _snap(abs(even) * unit) | (8 if math.copysign(1.0, even) < 0 else 0)
            high = _snap(abs(odd) * unit) | (8 if math.copysign(1.0, odd) < 0 else 0)
            codes[at // 2 + i] = low | (high << 4)


def quantise_numpy(values: Doubles, codes: Bytes, scales: Bytes) -> None:
    """What the compiled loop computes, for machines without numba."""
    blocks = values.reshape(-1, BLOCK)
    mantissa, exponent = np.frexp(np.abs(blocks).max(axis=1) / 6.0)
    rounded = np.where(mantissa > _SQRT_HALF, exponent, exponent - 1)
    rounded = np.clip(np.where(mantissa == 0, -127, rounded), -127, 127)
    scales[:] = rounded + 127
    magnitude = _snap(np.abs(blocks) * np.ldexp(1.0, -rounded)[:, None])
    nibbles = (magnitude | (np.signbit(blocks) * 8)).astype(np.uint8).reshape(-1)
    codes[:] = nibbles[0::2] | (nibbles[1::2] << 4)


_quantise = compile_loop(_quantise_loop) or quantise_numpy
