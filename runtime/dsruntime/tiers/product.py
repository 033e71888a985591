"""Few tokens times a packed matrix: codes are read, and never written out as a matrix.

Decoding a matrix first writes and reads four bytes for each weight, where its codes are a quarter
or half of one. That pays when many tokens share it; a decode step has one or two for an expert.

Compiled loops (numba) whose inner trip is sixteen bytes, which becomes vector code: a code's value
is computed from its bits, since a table look-up would be a gather. Where numba is missing nothing
here is used. Importing this imports numba: not at vLLM's start.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.codec.loops import compile_loop

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FEW = 4
"""Tokens up to which codes are multiplied as they are (`benchmarks/kernels.py` shows why)."""

_F, _I, _U = np.float32, np.int32, np.uint32
_U1, _U2, _U3, _U4, _U6, _U7, _U15 = (_U(n) for n in (1, 2, 3, 4, 6, 7, 15))
_I1, _I3, _I4 = _I(1), _I(3), _I(4)
_DOUBLED = _U(0xC8643210)
"""Nibble m is twice the value of e2m1 magnitude m."""


def can_multiply(tokens: int, k: int) -> bool:
    """Whether `base_product` and `fp4_product` are there, and worth it."""
    return tokens <= FEW and k % 64 == 0 and _loops() is not None


def base_product(x: torch.Tensor, codes: Bytes, scales: Bytes) -> torch.Tensor:
    """[T, K] times 2-bit [N, K/4] with scales [N, K/32] -> [T, N] in x's dtype."""
    return _run(0, x, 4, codes, scales)


def fp4_product(x: torch.Tensor, codes: Bytes, scales: Bytes) -> torch.Tensor:
    """[T, K] times FP4 [N, K/2] with scales [N, K/32] -> [T, N] in x's dtype."""
    return _run(1, x, 2, codes, scales)


def _run(which: int, x: torch.Tensor, per_byte: int, codes: Bytes, scales: Bytes) -> torch.Tensor:
    loops = _loops()
    assert loops is not None
    tokens, k = x.shape
    # weight i of every byte side by side: [T, per_byte, K / per_byte]
    spread = x.float().view(tokens, k // per_byte, per_byte).transpose(1, 2).contiguous().numpy()
    out = np.empty((tokens, len(codes)), np.float32)
    for row, result in zip(spread, out, strict=True):
        loops[which](codes, scales, row, _scale_values(), result)
    return torch.from_numpy(out).to(x.dtype)


def _base_loop(codes: Bytes, scales: Bytes, x: Floats, values: Floats, out: Floats) -> None:
    sums, scale = np.empty(16, np.float32), np.empty(16, np.float32)
    for row in range(codes.shape[0]):
        for lane in range(16):
            sums[lane] = _F(0)
        for step in range(scales.shape[1] // 2):  # sixteen bytes: two blocks of 32 weights
            for lane in range(8):
                scale[lane] = values[scales[row, 2 * step]]
                scale[lane + 8] = values[scales[row, 2 * step + 1]]
            at = 16 * step
            for lane in range(16):
                byte = _U(codes[row, at + lane])
                c0, c1 = _I(byte & _U3), _I((byte >> _U2) & _U3)
                c2, c3 = _I((byte >> _U4) & _U3), _I(byte >> _U6)
                sums[lane] += scale[lane] * (
                    _F(_I3 * c0 - (c0 >> _I1) - _I4) * x[0, at + lane]  # 0..3 -> -4 -1 1 4
                    + _F(_I3 * c1 - (c1 >> _I1) - _I4) * x[1, at + lane]
                    + _F(_I3 * c2 - (c2 >> _I1) - _I4) * x[2, at + lane]
                    + _F(_I3 * c3 - (c3 >> _I1) - _I4) * x[3, at + lane]
                )
        total = _F(0)
        for lane in range(16):
            total += sums[lane]
        out[row] = total


def _fp4_loop(codes: Bytes, scales: Bytes, x: Floats, values: Floats, out: Floats) -> None:
    sums = np.empty(16, np.float32)
    for row in range(codes.shape[0]):
        for lane in range(16):
            sums[lane] = _F(0)
        for block in range(scales.shape[1]):
            scale = values[scales[row, block]]
            at = 16 * block
            for lane in range(16):
                byte = _U(codes[row, at + lane])
                v0 = _I((_DOUBLED >> ((byte & _U7) << _U2)) & _U15)
                v1 = _I((_DOUBLED >> (((byte >> _U4) & _U7) << _U2)) & _U15)
                s0 = _I1 - _I((byte >> _U2) & _U2)
                s1 = _I1 - _I((byte >> _U6) & _U2)
                sums[lane] += scale * (
                    _F(v0 * s0) * x[0, at + lane] + _F(v1 * s1) * x[1, at + lane]
                )
        total = _F(0)
        for lane in range(16):
            total += sums[lane]
        out[row] = total * _F(0.5)


@cache
def prepare() -> None:
    """Compile now and not in the first decode step."""
    for product, per_byte in ((base_product, 4), (fp4_product, 2)):
        if can_multiply(1, 64):
            codes, scales = np.zeros((1, 64 // per_byte), np.uint8), np.zeros((1, 2), np.uint8)
            product(torch.zeros(1, 64), codes, scales)


@cache
def _loops() -> tuple[Any, Any] | None:
    """Both loops compiled; None where numba is missing."""
    base, fp4 = compile_loop(_base_loop, fast=True), compile_loop(_fp4_loop, fast=True)
    return None if base is None or fp4 is None else (base, fp4)


@cache
def _scale_values() -> Floats:
    """[256] the power of two of each e8m0 byte; 255 is NaN."""
    values = np.ldexp(1.0, np.minimum(np.arange(256), 254) - 127)
    values[255] = np.nan
    found: Floats = values.astype(np.float32)
    return found
