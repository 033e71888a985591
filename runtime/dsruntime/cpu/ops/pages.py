"""The paged caches of DeepSeek-V4, seen through their byte layout.

A cache arrives as ``[blocks, row bytes]`` uint8. Its rows are views into pools that several layers
share, so the distance between two rows (``stride(0)``) is larger than the bytes a row describes:
everything here goes through strides, never through a reshape.

*fp8_ds_mla page* (vLLM's fused_compress_quant_cache.py): ``block_size * 576`` bytes of tokens (448
e4m3 channels, then 64 bf16 rotary channels), then ``block_size * 8`` bytes of scales (one power of
two per 64 channels as a biased exponent, seven of them, one pad).

*index page*: ``block_size * 128`` bytes of e4m3 keys, then ``block_size * 4`` bytes, one fp32
power-of-two scale per key.
"""

from __future__ import annotations

import torch

from dsruntime.cpu.ops.fp8 import decode_e4m3, encode_e4m3, power_of_two, scale_exponents

HEAD_DIM = 512
NOPE_DIM = 448
ROPE_DIM = HEAD_DIM - NOPE_DIM
QUANT_BLOCK = 64
SCALES = NOPE_DIM // QUANT_BLOCK
TOKEN_BYTES = NOPE_DIM + 2 * ROPE_DIM
SCALE_BYTES = 8
EXPONENT_BIAS = 127

INDEX_DIM = 128
INDEX_SCALE_BYTES = 4


def _section(cache: torch.Tensor, block_size: int, start: int, width: int) -> torch.Tensor:
    """[blocks, block_size, width] view of the bytes of one section of every page."""
    return cache.as_strided(
        (cache.shape[0], block_size, width),
        (cache.stride(0), width, 1),
        cache.storage_offset() + start,
    )


def _locate(slots: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    slots = slots.to(torch.int64)
    return torch.div(slots, block_size, rounding_mode="floor"), slots % block_size


def store_latents(
    cache: torch.Tensor, block_size: int, slots: torch.Tensor, rows: torch.Tensor
) -> None:
    """Quantize key/value rows into fp8_ds_mla pages.

    Args:
        cache: [blocks, row bytes] uint8, written in place.
        slots: [N] token slots, all valid.
        rows: [N, 512] fp32, rotary channels already rotated; the rest rounded to bf16 by the
            caller where the reference does so.
    """
    blocks = rows[:, :NOPE_DIM].unflatten(1, (SCALES, QUANT_BLOCK))
    exponents = scale_exponents(blocks.abs().amax(dim=-1))
    token = torch.empty(rows.shape[0], TOKEN_BYTES, dtype=torch.uint8)
    token[:, :NOPE_DIM] = encode_e4m3(blocks, exponents.unsqueeze(-1)).flatten(1).view(torch.uint8)
    token[:, NOPE_DIM:] = rows[:, NOPE_DIM:].to(torch.bfloat16).view(torch.uint8)
    scale = torch.zeros(rows.shape[0], SCALE_BYTES, dtype=torch.uint8)
    scale[:, :SCALES] = (exponents + EXPONENT_BIAS).to(torch.uint8)
    at = _locate(slots, block_size)
    _section(cache, block_size, 0, TOKEN_BYTES)[at] = token
    _section(cache, block_size, block_size * TOKEN_BYTES, SCALE_BYTES)[at] = scale


def load_latents(cache: torch.Tensor, block_size: int, slots: torch.Tensor) -> torch.Tensor:
    """[N, 512] fp32 rows of the given (valid) slots of fp8_ds_mla pages."""
    at = _locate(slots, block_size)
    token = _section(cache, block_size, 0, TOKEN_BYTES)[at]
    scale = _section(cache, block_size, block_size * TOKEN_BYTES, SCALE_BYTES)[at]
    factors = power_of_two(scale[:, :SCALES].to(torch.int32) - EXPONENT_BIAS)
    rows = torch.empty(token.shape[0], HEAD_DIM, dtype=torch.float32)
    nope = decode_e4m3(token[:, :NOPE_DIM]).unflatten(1, (SCALES, QUANT_BLOCK))
    rows[:, :NOPE_DIM] = nope.mul_(factors.unsqueeze(-1)).flatten(1)
    rows[:, NOPE_DIM:] = token[:, NOPE_DIM:].contiguous().view(torch.bfloat16)
    return rows


def store_index_keys(
    cache: torch.Tensor, block_size: int, slots: torch.Tensor, rows: torch.Tensor
) -> None:
    """Quantize [N, 128] fp32 index keys, one scale each, into index pages at N valid slots."""
    exponents = scale_exponents(rows.abs().amax(dim=-1, keepdim=True))
    at = _locate(slots, block_size)
    codes = encode_e4m3(rows, exponents).view(torch.uint8)
    _section(cache, block_size, 0, INDEX_DIM)[at] = codes
    scales = _section(cache, block_size, block_size * INDEX_DIM, INDEX_SCALE_BYTES)
    scales[at] = power_of_two(exponents).view(torch.uint8)


def load_index_keys(cache: torch.Tensor, block_size: int, slots: torch.Tensor) -> torch.Tensor:
    """[N, 128] fp32 index keys of the given (valid) slots."""
    at = _locate(slots, block_size)
    codes = _section(cache, block_size, 0, INDEX_DIM)[at]
    scales = _section(cache, block_size, block_size * INDEX_DIM, INDEX_SCALE_BYTES)[at]
    return decode_e4m3(codes) * scales.contiguous().view(torch.float32)
