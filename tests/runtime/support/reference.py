"""transformers' DeepSeek-V4 in fp32, with the engine's FP8 caches simulated.

The engine keeps keys (which are also the values), compressed entries and index keys in FP8; those
roundings are part of what it serves, so the reference makes them too: at the one place where
attention reads its rows, and at the one where the indexer scores.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DeepseekV4ForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

from tests.runtime.support.quantize import exponent_for


def rounded(x: torch.Tensor, block: int) -> torch.Tensor:
    """x [..., D] as e4m3 with one power-of-two scale per ``block`` channels (of at least 1e-4)."""
    blocks = x.unflatten(-1, (-1, block))
    factors = torch.exp2(exponent_for(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4), 448.0))
    codes = (blocks.double() / factors).float().to(torch.float8_e4m3fn)
    return (codes.double() * factors).flatten(-2).to(x.dtype)


def latent(rows: torch.Tensor) -> torch.Tensor:
    """[..., 512] rows as an fp8_ds_mla page gives them back."""
    rows = rows.to(torch.bfloat16).float()
    return torch.cat([rounded(rows[..., :448], 64), rows[..., 448:]], dim=-1)


def attention(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """transformers' eager attention over rows that went through an FP8 page."""
    rows = latent(key)
    return modeling.eager_attention_forward(module, query, rows, rows, *args, **kwargs)


class Scorer(modeling.DeepseekV4IndexerScorer):
    """The index scores over FP8 queries and keys."""

    def forward(self, q: Any, compressed_kv: Any, hidden_states: Any) -> Any:
        keys = rounded(compressed_kv.to(torch.bfloat16).float(), 128)
        return super().forward(rounded(q.to(torch.bfloat16).float(), 128), keys, hidden_states)


def with_fp8_caches(model: DeepseekV4ForCausalLM) -> DeepseekV4ForCausalLM:
    """The same model (changed in place), its caches rounded."""
    ALL_ATTENTION_FUNCTIONS.register("eager_fp8", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("eager_fp8", eager_mask)
    model.config._attn_implementation = "eager_fp8"
    for module in model.modules():
        if isinstance(module, modeling.DeepseekV4IndexerScorer):
            module.__class__ = Scorer
    return model


@torch.no_grad()
def logprobs(model: DeepseekV4ForCausalLM, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), V] log-probabilities after each token, in one pass without a cache."""
    output = model(torch.tensor([tokens]), use_cache=False)
    return torch.log_softmax(output.logits[0].double(), dim=-1)
