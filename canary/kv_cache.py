"""What an FP8 cache does to keys, for training and for comparisons without an engine.

vLLM's ``fp8_ds_mla`` layout stores the 448 position-free numbers of a head as e4m3 with one
power-of-two scale per 64, and the 64 rotary ones as bf16. Keys are values too in DeepSeek-V4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekV4ForCausalLM

from canary.formats import E4M3_MAX, scale_exponents

BLOCK = 64
_FLOOR = 1e-4  # smallest block maximum that vLLM makes a scale for


def cached(entries: Tensor, rotary: int = 64) -> Tensor:
    """Entries as the cache gives them back; gradients pass straight through.

    Args:
        entries: [..., head_dim]; the last ``rotary`` are stored as bf16 (before or after rotation
            makes no difference to the others).
    """
    plain = entries[..., :-rotary].detach().float()
    plain = plain.reshape(*plain.shape[:-1], -1, BLOCK)
    exponents = scale_exponents(plain.abs().amax(-1, keepdim=True).clamp(min=_FLOOR), E4M3_MAX)
    codes = torch.ldexp(plain, -exponents).to(torch.float8_e4m3fn)
    plain = torch.ldexp(codes.float(), exponents).flatten(-2)
    stored = torch.cat([plain, entries[..., -rotary:].detach().to(torch.bfloat16).float()], dim=-1)
    return entries + (stored - entries).detach()


@contextmanager
def simulated_cache(model: DeepseekV4ForCausalLM) -> Iterator[None]:
    """Every key and every compressed entry of ``model`` goes through the FP8 cache meanwhile."""
    rotary = int(model.config.qk_rope_head_dim)

    def store(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return cached(output, rotary)

    norms = [
        module
        for name, module in model.named_modules()
        if name.endswith("kv_norm") and "indexer" not in name
    ]
    handles = [norm.register_forward_hook(store) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
