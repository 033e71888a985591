"""Tiny random DeepSeek-V4 models: the same weights as an official checkpoint and in transformers.

The transformers model is read back from the checkpoint, so it holds the values that the FP8 and
FP4 codes mean: any difference between it and the engine is arithmetic, not quantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from canary.export import export_checkpoint, load_checkpoint


@dataclass(frozen=True)
class TinyShape:
    """What the tests vary; everything else is fixed below."""

    hidden: int = 256
    moe_intermediate: int = 128
    ratios: tuple[int, ...] = (0, 4, 128, 4)
    heads: int = 4
    experts: int = 8
    experts_per_token: int = 2
    index_topk: int = 64
    hash_layers: int = 1
    swiglu_limit: float = 10.0
    vocabulary: int = 512
    seed: int = 0


YARN = {"factor": 4, "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1}


def configuration(shape: TinyShape) -> DeepseekV4Config:
    """The real architecture at the size of ``shape``."""
    return DeepseekV4Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        moe_intermediate_size=shape.moe_intermediate,
        num_hidden_layers=len(shape.ratios),
        compress_ratios=list(shape.ratios),
        num_hash_layers=shape.hash_layers,
        num_attention_heads=shape.heads,
        q_lora_rank=128,
        o_lora_rank=128,
        o_groups=2,
        n_routed_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        index_n_heads=4,
        index_topk=shape.index_topk,
        swiglu_limit=shape.swiglu_limit,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "yarn", **YARN},
        attn_implementation="eager",
    )


def randomize(model: DeepseekV4ForCausalLM, seed: int) -> None:
    """Weights at which every part of the model matters to its output."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, std: float, mean: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    for name, tensor in model.state_dict().items():
        if name.endswith("tid2eid"):
            experts = model.config.n_routed_experts
            for row in tensor:
                row.copy_(torch.randperm(experts, generator=generator)[: row.shape[0]])
        elif "norm" in name:
            normal(tensor, 0.1, 1.0)
        elif name.endswith(("hc.scale", "hc_scale")):
            normal(tensor, 0.1, 0.5)
        elif name.endswith(("hc.base", "hc_base", "sinks", "position_bias")):
            normal(tensor, 0.5)
        elif name.endswith("e_score_correction_bias"):
            normal(tensor, 0.05)
        elif name.endswith(("hc.fn", "hc_fn")):
            normal(tensor, 0.02)
        elif "embed_tokens" in name:
            normal(tensor, 1.0)
        else:
            normal(tensor, 1.0 / tensor.shape[-1] ** 0.5)


@torch.no_grad()
def build(shape: TinyShape, directory: Path) -> DeepseekV4ForCausalLM:
    """Write an official checkpoint; the fp32 transformers model of the values it means."""
    model = DeepseekV4ForCausalLM(configuration(shape)).eval()
    randomize(model, shape.seed)
    export_checkpoint(model, directory)
    return load_checkpoint(directory)
