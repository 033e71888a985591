"""From a transformers DeepSeek-V4 to an official checkpoint, and back.

``export_checkpoint`` writes what the real checkpoint has: official tensor names, FP8 128x128 dense
weights, FP4 block-32 experts, e8m0 scales, official config.json. ``load_checkpoint`` reads such a
directory into transformers with the exact values that the codes mean, so that whatever differs
from an engine serving the same files is arithmetic, not quantization.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from canary.formats import fp4_decode, fp4_encode, fp4_round, fp8_decode, fp8_encode, fp8_round
from canary.names import EXPERTS, Storage, official_name, storage_of

WEIGHTS = "model.safetensors"

_QUANTIZATION = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
_RATIO_OF_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_COPIED = (
    "vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank",
    "o_lora_rank", "o_groups", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "scoring_func", "norm_topk_prob", "routed_scaling_factor", "swiglu_limit", "hidden_act",
    "hc_mult", "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps", "sliding_window", "index_n_heads",
    "index_head_dim", "index_topk", "compress_rope_theta", "rope_theta",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
    "initializer_range", "tie_word_embeddings", "attention_bias", "attention_dropout",
)  # fmt: skip


def official_config(config: DeepseekV4Config) -> dict[str, Any]:
    """config.json with the official checkpoint's keys, for a transformers configuration.

    The RoPE of the compressed layers must be YaRN, as it is in every published DeepSeek-V4.
    """
    compress = config.rope_parameters["compress"]
    if compress["rope_type"] != "yarn":
        raise ValueError("rope_parameters: the official config describes YaRN only")
    yarn = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    official: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        **{key: getattr(config, key) for key in _COPIED},
        "num_hash_layers": config.mlp_layer_types.count("hash_moe"),
        "topk_method": "noaux_tc",
        # one more entry than layers, as in the official file (it belongs to the draft)
        "compress_ratios": [*(_RATIO_OF_TYPE[kind] for kind in config.layer_types), 0],
        "rope_scaling": {"type": "yarn", **{key: compress[key] for key in yarn}},
        "expert_dtype": "fp4",
        "quantization_config": _QUANTIZATION,
        "num_nextn_predict_layers": 0,
    }
    return official


def reference_config(official: Mapping[str, Any]) -> DeepseekV4Config:
    """The transformers configuration of an official config.json (eager attention, fp32)."""
    layers = official["num_hidden_layers"]
    scaling = {key: value for key, value in official["rope_scaling"].items() if key != "type"}
    return DeepseekV4Config(
        **{key: official[key] for key in _COPIED if key in official},
        num_hash_layers=official["num_hash_layers"],
        compress_ratios=list(official["compress_ratios"][:layers]),
        rope_parameters={"rope_type": "yarn", **scaling},
        attn_implementation="eager",
    )


def rounded(name: str, tensor: Tensor) -> Tensor:
    """The values that the official checkpoint can hold for a transformers tensor.

    Args:
        name: transformers' name of the tensor (``model.layers.0.self_attn.q_a_proj.weight``).
        tensor: its values; stacked experts are [E, N, K].

    Returns:
        The nearest storable values, same shape; fp32 for floats.
    """
    storage = storage_of(official_name(name))
    if storage is Storage.FP8:
        return fp8_round(tensor)
    if storage is Storage.FP4:
        return fp4_round(tensor)
    if storage is Storage.BF16:
        return tensor.to(torch.bfloat16).float()
    return tensor


def official_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A transformers state dict as the official checkpoint's tensors, quantized."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        target = official_name(name)
        storage = storage_of(target)
        if storage is Storage.FP4:
            for part, matrix in _expert_matrices(target, tensor).items():
                codes, scales = fp4_encode(matrix)
                tensors[f"{part}.weight"], tensors[f"{part}.scale"] = codes, scales
        elif storage is Storage.FP8:
            codes, scales = fp8_encode(tensor)
            tensors[target], tensors[target.removesuffix("weight") + "scale"] = codes, scales
        elif storage is Storage.INT64:
            tensors[target] = tensor.to(torch.int64).clone()
        else:
            kind = torch.bfloat16 if storage is Storage.BF16 else torch.float32
            tensors[target] = tensor.detach().to(kind).clone()
    return tensors


def _expert_matrices(target: str, stacked: Tensor) -> dict[str, Tensor]:
    """Stacked experts [E, N, K] -> official prefix of each matrix -> [N, K]."""
    prefix, _, kind = target.rpartition(".")
    matrices: dict[str, Tensor] = {}
    for expert, matrix in enumerate(stacked.detach()):
        if kind == "down_proj":
            matrices[f"{prefix}.{expert}.w2"] = matrix
        else:
            matrices[f"{prefix}.{expert}.w1"], matrices[f"{prefix}.{expert}.w3"] = matrix.chunk(2)
    return matrices


def export_checkpoint(model: DeepseekV4ForCausalLM, directory: Path) -> None:
    """Write ``model`` as an official checkpoint: model.safetensors and config.json.

    Any configuration works whose sizes the formats allow (expert rows a multiple of 32), including
    ``num_experts_per_tok == n_routed_experts``. The model itself is not changed: see ``rounded``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = official_tensors(model.state_dict())
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(ordered, directory / WEIGHTS, metadata={"format": "pt"})
    config = json.dumps(official_config(model.config), indent=2)
    (directory / "config.json").write_text(config + "\n", encoding="utf-8")


def load_checkpoint(directory: Path) -> DeepseekV4ForCausalLM:
    """An official checkpoint as a transformers model in fp32, every code decoded exactly."""
    official = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    model = DeepseekV4ForCausalLM(reference_config(official)).float().eval()
    with safe_open(str(directory / WEIGHTS), framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    state = {name: _decoded(stored, name, tensor) for name, tensor in model.state_dict().items()}
    if stored:
        raise ValueError(f"{directory}: tensors that no parameter takes, e.g. {min(stored)}")
    model.load_state_dict(state)
    return model


def _decoded(stored: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Take what belongs to transformers' ``name`` out of ``stored``; its values."""
    target = official_name(name)
    storage = storage_of(target)
    if storage is Storage.FP4:
        parts = list(_expert_matrices(target, like))
        matrices = [fp4_decode(stored.pop(f"{p}.weight"), stored.pop(f"{p}.scale")) for p in parts]
        if EXPERTS.search(target) and target.endswith("gate_up_proj"):
            pairs = zip(matrices[0::2], matrices[1::2], strict=True)
            return torch.stack([torch.cat(pair) for pair in pairs])
        return torch.stack(matrices)
    if storage is Storage.FP8:
        return fp8_decode(stored.pop(target), stored.pop(target.removesuffix("weight") + "scale"))
    return stored.pop(target).to(like.dtype)
