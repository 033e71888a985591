"""An exported model and the one loaded back are the same numbers under official names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the engine's environment")
pytest.importorskip("transformers", reason="needs the engine's environment")

from safetensors import safe_open  # noqa: E402
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM  # noqa: E402

from canary.export import (  # noqa: E402
    export_checkpoint,
    load_checkpoint,
    official_config,
    reference_config,
    rounded,
)

YARN = {"factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}


def tiny(**changes: object) -> DeepseekV4ForCausalLM:
    shape = {
        "vocab_size": 64, "hidden_size": 128, "moe_intermediate_size": 128,
        "num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "num_hash_layers": 1,
        "num_attention_heads": 2, "q_lora_rank": 128, "o_lora_rank": 128, "o_groups": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "index_n_heads": 2,
        "max_position_embeddings": 256, "rope_parameters": {"rope_type": "yarn", **YARN},
        "attn_implementation": "eager",
    }  # fmt: skip
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**{**shape, **changes})).float()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("tid2eid"):
                tensor.copy_(torch.randint(0, 4, tensor.shape, generator=generator))
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[DeepseekV4ForCausalLM, Path]:
    model = tiny()
    directory = tmp_path_factory.mktemp("exported")
    export_checkpoint(model, directory)
    return model, directory


def test_loading_gives_the_values_the_formats_can_hold(
    exported: tuple[DeepseekV4ForCausalLM, Path],
) -> None:
    model, directory = exported
    loaded = load_checkpoint(directory).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], rounded(name, tensor)), name


def test_exporting_what_was_loaded_gives_the_same_values(
    exported: tuple[DeepseekV4ForCausalLM, Path], tmp_path: Path
) -> None:
    once = load_checkpoint(exported[1])
    export_checkpoint(once, tmp_path)
    twice = load_checkpoint(tmp_path).state_dict()
    for name, tensor in once.state_dict().items():
        assert torch.equal(twice[name], tensor), name


def test_tensors_have_official_names_and_types(
    exported: tuple[DeepseekV4ForCausalLM, Path],
) -> None:
    with safe_open(str(exported[1] / "model.safetensors"), framework="pt") as file:
        names = set(file.keys())
        types = {name: file.get_slice(name).get_dtype() for name in names}
    assert types["layers.0.ffn.gate.tid2eid"] == "I64"
    assert "layers.1.ffn.gate.tid2eid" not in names
    assert types["layers.1.ffn.gate.bias"] == "F32"
    assert types["layers.1.ffn.experts.3.w2.weight"] == "I8"
    assert types["layers.1.ffn.experts.3.w2.scale"] == "F8_E8M0"
    assert types["layers.2.attn.wo_a.weight"] == "F8_E4M3"
    assert types["layers.2.attn.wo_a.scale"] == "F8_E8M0"
    assert types["layers.1.attn.indexer.wq_b.weight"] == "F8_E4M3"
    assert types["layers.1.attn.indexer.weights_proj.weight"] == "BF16"
    assert types["layers.1.attn.indexer.compressor.ape"] == "F32"
    assert types["layers.2.attn.compressor.wkv.weight"] == "BF16"
    assert types["hc_head_fn"] == types["layers.0.hc_attn_base"] == "F32"
    assert {"embed.weight", "head.weight", "norm.weight", "layers.0.attn.attn_sink"} <= names


def test_the_configuration_survives_both_ways() -> None:
    config = tiny().config
    official = official_config(config)
    assert official["compress_ratios"] == [0, 4, 128, 0]
    assert official_config(reference_config(json.loads(json.dumps(official)))) == official


def test_a_model_that_selects_every_expert_can_be_exported(tmp_path: Path) -> None:
    model = tiny(num_experts_per_tok=4)
    export_checkpoint(model, tmp_path)
    loaded = load_checkpoint(tmp_path)
    logits = loaded(torch.arange(40)[None], use_cache=False).logits
    assert math.isfinite(logits.abs().max().item())


def test_a_tensor_too_many_is_named(
    exported: tuple[DeepseekV4ForCausalLM, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(exported[1] / "model.safetensors")
    save_file({**tensors, "stray.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((exported[1] / "config.json").read_text())
    with pytest.raises(ValueError, match=r"stray\.weight"):
        load_checkpoint(tmp_path)
