"""DeepSeek-V4's formulas in plain float64, one token at a time: what operators are held to.

Written from the papers' and formats' definitions; imports nothing of the runtime.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def e4m3(code: int) -> float:
    """One e4m3 byte: sign, 4 exponent bits (bias 7), 3 mantissa bits, no infinities."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 7
    if exponent == 0xF and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3 = np.array([e4m3(code) for code in range(256)])
E4M3_SORTED = np.unique(E4M3[~np.isnan(E4M3)])


def to_e4m3(value: float) -> float:
    """The nearest e4m3 value, ties to the even mantissa."""
    best = np.abs(E4M3_SORTED - value)
    near = E4M3_SORTED[best == best.min()]
    if len(near) == 1:
        return float(near[0])
    even = [v for v in near if (int(np.where(v == E4M3)[0][0]) & 1) == 0]
    return float(even[0])


def bf16(value: float) -> float:
    """Round to bfloat16 (nearest, ties to even) from float64 by way of float32."""
    bits = int(np.float32(value).view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


def power_scale(amax: float) -> float:
    """The smallest power of two under which amax fits in e4m3; amax is at least 1e-4."""
    return 2.0 ** math.ceil(math.log2(max(amax, 1e-4) / 448.0))


def fake_quantized(row: Array, block: int) -> Array:
    """A row as e4m3 with one power-of-two scale per block gives it back."""
    out = np.empty_like(row)
    for start in range(0, len(row), block):
        part = row[start : start + block]
        scale = power_scale(float(np.abs(part).max()))
        out[start : start + block] = [to_e4m3(v / scale) * scale for v in part]
    return out


def as_latent(row: Array) -> Array:
    """A 512-channel row as an fp8_ds_mla page gives it back."""
    rope = np.array([bf16(v) for v in row[448:]])
    return np.concatenate([fake_quantized(row[:448], 64), rope])


def angles(position: int, width: int, theta: float = 10000.0) -> tuple[Array, Array]:
    """Cosines and sines of the rotary pairs at a position."""
    frequency = theta ** (-np.arange(0, width, 2) / width)
    return np.cos(position * frequency), np.sin(position * frequency)


def rotated(row: Array, position: int, width: int, *, back: bool = False) -> Array:
    """Rotate the last ``width`` channels, pair (2i, 2i + 1) by the i-th angle."""
    cos, sin = angles(position, width)
    if back:
        sin = -sin
    out = row.copy()
    tail = row[len(row) - width :]
    out[len(row) - width :: 2] = tail[0::2] * cos - tail[1::2] * sin
    out[len(row) - width + 1 :: 2] = tail[0::2] * sin + tail[1::2] * cos
    return out


def rms_normed(row: Array, eps: float) -> Array:
    return row / math.sqrt(float(np.mean(row**2)) + eps)


def softmax(logits: Array, axis: int = -1) -> Array:
    powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def attention(q: Array, rows: Array, sink: Array, scale: float) -> Array:
    """One token: q [H, D] over the rows it sees [N, D]; the sink is a key without a value."""
    out = np.zeros_like(q)
    for head in range(q.shape[0]):
        logits = np.append(rows @ q[head] * scale, sink[head])
        out[head] = softmax(logits)[:-1] @ rows
    return out


def sinkhorn(logits: Array, iterations: int, eps: float) -> Array:
    comb = softmax(logits, axis=1) + eps
    comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
    return comb


def swiglu(gate: Array, up: Array, limit: float | None) -> Array:
    if limit is not None:
        gate = np.minimum(gate, limit)
        up = np.clip(up, -limit, limit)
    return gate * sigmoid(gate) * up
