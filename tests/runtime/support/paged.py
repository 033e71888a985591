"""Paged caches in the shape vLLM hands them out: rows padded because layers share a pool."""

from __future__ import annotations

import torch


def padded_pages(
    blocks: int, logical_bytes: int, padding: int = 96, offset: int = 32
) -> torch.Tensor:
    """[blocks, logical_bytes] uint8, rows ``padding`` bytes further apart, full of junk."""
    stride = logical_bytes + padding
    generator = torch.Generator().manual_seed(7)
    pool = torch.randint(0, 256, (offset + blocks * stride,), generator=generator).to(torch.uint8)
    return pool.as_strided((blocks, logical_bytes), (stride, 1), offset)


def latent_pages(blocks: int, block_size: int) -> torch.Tensor:
    """fp8_ds_mla pages."""
    return padded_pages(blocks, block_size * 584)


def index_pages(blocks: int, block_size: int) -> torch.Tensor:
    """Index-key pages."""
    return padded_pages(blocks, block_size * 132)


def outside(pages: torch.Tensor) -> torch.Tensor:
    """The bytes of the pool that belong to other layers (between the rows)."""
    padding = pages.stride(0) - pages.shape[1]
    return pages.as_strided(
        (pages.shape[0] - 1, padding),
        (pages.stride(0), 1),
        pages.storage_offset() + pages.shape[1],
    )


def cos_sin_table(positions: int, width: int) -> torch.Tensor:
    """[positions, width] fp32: cosines, then sines, as vLLM's rotary tables."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1).float()
