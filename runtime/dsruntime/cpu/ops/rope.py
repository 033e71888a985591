"""Rotary embedding as DeepSeek-V4 uses it: interleaved pairs, on the last channels of a head."""

from __future__ import annotations

import torch


def rotate_tail(
    x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, *, inverse: bool = False
) -> torch.Tensor:
    """Rotate the last ``R`` channels of ``x`` by the angle of each row's position.

    Channels ``(2i, 2i + 1)`` of the tail are one pair (GPT-J order), the leading channels pass.

    Args:
        x: [T, ..., D] fp32.
        positions: [T] integer.
        cos_sin: [P, R] fp32, cosines then sines, ``R / 2`` of each.
        inverse: rotate back, for attention outputs (whose values were rotated keys).

    Returns:
        [T, ..., D] fp32, new storage.
    """
    width = cos_sin.shape[-1]
    angles = cos_sin.index_select(0, positions.to(torch.int64))
    angles = angles.view(positions.shape[0], *([1] * (x.ndim - 2)), width)
    cos, sin = angles.chunk(2, dim=-1)
    if inverse:
        sin = -sin
    out = x.clone()
    even, odd = x[..., -width::2], x[..., 1 - width :: 2]
    torch.sub(even * cos, odd * sin, out=out[..., -width::2])
    torch.add(odd * cos, even * sin, out=out[..., 1 - width :: 2])
    return out
