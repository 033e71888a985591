"""FP4 as the checkpoint stores it: e2m1 codes, one e8m0 scale for every 32 weights along K.

Two codes a byte, the even k in the low nibble (OCP Microscaling Formats 1.0; the layout of
DeepSeek-V4's routed experts). Scale byte b means 2**(b - 127); 255 is NaN, 0 is 2**-127. The codec
never computes with scales: it carries all 256 of them through unchanged. Only the decoders below
give them a meaning, and a NaN scale makes its 32 weights NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dsruntime.codec.loops import LOOPS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating]

BLOCK = 32
"""Weights that share one scale."""
NAN_SCALE = 255

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
"""Value of each FP4 code; code 8 is the negative zero."""
BASE_LEVELS = np.array([-4.0, -1.0, 1.0, 4.0], np.float32)
"""Value of each 2-bit code, in units of the same scale."""


def unpack_nibbles(packed: Bytes) -> Bytes:
    """[..., K/2] bytes -> [..., K] codes 0..15."""
    out: Bytes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., 0::2] = packed & 0x0F
    out[..., 1::2] = packed >> 4
    return out


def pack_nibbles(codes: Bytes) -> Bytes:
    """[..., K] codes 0..15 -> [..., K/2] bytes."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_base(packed: Bytes) -> Bytes:
    """[..., K/4] bytes -> [..., K] codes 0..3; k = 4j is in the lowest two bits of byte j."""
    out: Bytes = np.empty((*packed.shape[:-1], packed.shape[-1] * 4), np.uint8)
    for i in range(4):
        out[..., i::4] = (packed >> (2 * i)) & 3
    return out


def scale_values(scales: Bytes) -> npt.NDArray[np.float64]:
    """e8m0 bytes -> their values, exactly; 255 -> NaN."""
    values = np.ldexp(1.0, scales.astype(np.int32) - 127)
    values[scales == NAN_SCALE] = np.nan
    return values


def decode_fp4(packed: Bytes, scales: Bytes) -> npt.NDArray[np.float64]:
    """[N, K/2] codes and [N, K/32] scales -> [N, K] values, exactly."""
    return _scaled(E2M1[unpack_nibbles(packed)], scales)


def decode_base(packed: Bytes, scales: Bytes) -> npt.NDArray[np.float64]:
    """[N, K/4] base codes and [N, K/32] scales -> [N, K] values, exactly."""
    return _scaled(BASE_LEVELS[unpack_base(packed)], scales)


def base_as_fp4(packed: Bytes) -> Bytes:
    """[N, K/4] base codes -> the FP4 codes of the same values ([N, K/2]): +-1 and +-4."""
    return pack_nibbles(np.array([14, 10, 2, 6], np.uint8)[unpack_base(packed)])


def encode_base(packed: Bytes) -> Bytes:
    """[N, K/2] FP4 codes -> [N, K/4] base codes; K a multiple of 32."""
    return LOOPS.base(packed).reshape(packed.shape[0], -1)


def encode_split(packed: Bytes) -> tuple[Bytes, Bytes]:
    """[N, K/2] FP4 codes -> remainder planes low [N, K/4] and high [N, K/16]."""
    low, high = LOOPS.split(packed)
    return low.reshape(packed.shape[0], -1), high.reshape(packed.shape[0], -1)


def decode_split(base: Bytes, low: Bytes, high: Bytes) -> Bytes:
    """[N, K/4] base codes and remainder planes -> [N, K/2] FP4 codes, bit for bit."""
    return LOOPS.join(base, low, high).reshape(base.shape[0], -1)


def _scaled(units: Floats, scales: Bytes) -> npt.NDArray[np.float64]:
    blocks = units.astype(np.float64).reshape(*scales.shape, BLOCK)
    scaled: npt.NDArray[np.float64] = blocks * scale_values(scales)[..., None]
    return scaled.reshape(units.shape)
