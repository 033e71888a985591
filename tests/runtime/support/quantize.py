"""Quantizing as the official checkpoint does, written from the formats and in float64.

Nothing here comes from the runtime: the tests compare the runtime with it.
"""

from __future__ import annotations

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def exponent_for(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """Exponents of the smallest power-of-two scales under which ``amax`` fits ``largest``."""
    return torch.ceil(torch.log2(amax.double().clamp(min=1e-20) / largest))


def fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix as FP8 with one power-of-two scale per 128 x 128 block.

    Returns:
        codes [N, K] float8_e4m3fn, scales [ceil(N/128), ceil(K/128)] float8_e8m0fnu, and the
        values they mean [N, K] fp32.
    """
    n, k = weight.shape
    rows, columns = -(-n // 128), -(-k // 128)
    padded = torch.zeros(rows * 128, columns * 128, dtype=torch.float64)
    padded[:n, :k] = weight.double()
    blocks = padded.view(rows, 128, columns, 128)
    exponents = exponent_for(blocks.abs().amax(dim=(1, 3)), 448.0)
    factors = torch.exp2(exponents)[:, None, :, None]
    codes = (blocks / factors).clamp(-448, 448).float().to(torch.float8_e4m3fn)
    values = (codes.double() * factors).reshape(rows * 128, columns * 128)[:n, :k].float()
    codes = codes.reshape(rows * 128, columns * 128)[:n, :k].contiguous()
    return codes, (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu), values


def fp4_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix as FP4 (e2m1) with one power-of-two scale per 32 weights of a row.

    Returns:
        codes [N, K/2] int8 (low nibble first), scales [N, K/32] float8_e8m0fnu, values [N, K] fp32.
    """
    n, k = weight.shape
    blocks = weight.double().view(n, k // 32, 32)
    exponents = exponent_for(blocks.abs().amax(dim=-1), 6.0)
    factors = torch.exp2(exponents)[..., None]
    scaled = blocks / factors
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(dim=-1)
    values = torch.sign(scaled) * E2M1[codes] * factors
    codes = (codes + 8 * (scaled < 0)).view(n, k // 2, 2).to(torch.uint8)
    packed = (codes[..., 0] | (codes[..., 1] << 4)).view(torch.int8)
    scales = (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    return packed, scales, values.view(n, k).float()
