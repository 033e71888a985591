"""Names and storage of every tensor: transformers' DeepseekV4ForCausalLM and the official files."""

from __future__ import annotations

import re
from enum import Enum

_RULES: tuple[tuple[str, str], ...] = (
    # transformers -> official, applied in order
    (r"^model\.", ""),
    (r"^lm_head\.", "head."),
    (r"^embed_tokens\.", "embed."),
    (r"^hc_head\.hc_", "hc_head_"),
    (r"\.self_attn\.", ".attn."),
    (r"\.mlp\.", ".ffn."),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.(attn|ffn)_hc\.", r".hc_\1_"),
    (r"\.compressor\.indexer\.scorer\.", ".indexer."),
    (r"\.compressor\.indexer\.q_b_proj\.", ".indexer.wq_b."),
    (r"\.compressor\.indexer\.", ".indexer.compressor."),
    (r"compressor\.kv_norm\.", "compressor.norm."),
    (r"compressor\.gate_proj\.", "compressor.wgate."),
    (r"\.position_bias$", ".ape"),
    (r"\.sinks$", ".attn_sink"),
    (r"\.q_a_proj\.", ".wq_a."),
    (r"\.q_b_proj\.", ".wq_b."),
    (r"\.kv_proj\.", ".wkv."),
    (r"\.o_a_proj\.", ".wo_a."),
    (r"\.o_b_proj\.", ".wo_b."),
    (r"\.q_a_norm\.", ".q_norm."),
    (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."),
    (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
    (r"\.shared_experts\.up_proj\.", ".shared_experts.w3."),
    (r"\.e_score_correction_bias$", ".bias"),
)


class Storage(Enum):
    """How a tensor is stored in the official checkpoint."""

    FP8 = "FP8 e4m3, e8m0 scale per 128x128"
    FP4 = "FP4 e2m1, e8m0 scale per 32"
    BF16 = "BF16"
    FP32 = "FP32"
    INT64 = "INT64"


_FP8 = re.compile(r"\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$|\.indexer\.wq_b\.weight$")
_FP8_SHARED = re.compile(r"\.shared_experts\.w[123]\.weight$")
_FP32 = re.compile(r"hc_|\.attn_sink$|\.ape$|\.gate\.bias$")
EXPERTS = re.compile(r"\.ffn\.experts\.(gate_up_proj|down_proj)$")
"""The stacked experts of a layer; officially one matrix per expert and part (w1, w2, w3)."""


def official_name(name: str) -> str:
    """The official name of a transformers tensor; stacked experts keep their last part."""
    for pattern, replacement in _RULES:
        name = re.sub(pattern, replacement, name)
    return name


def storage_of(official: str) -> Storage:
    """How the official checkpoint stores the tensor of that official name."""
    if official.endswith(".tid2eid"):
        return Storage.INT64
    if EXPERTS.search(official):
        return Storage.FP4
    if _FP8.search(official) or _FP8_SHARED.search(official):
        return Storage.FP8
    return Storage.FP32 if _FP32.search(official) else Storage.BF16
