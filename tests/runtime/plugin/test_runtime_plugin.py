"""What the plugin changes, and when it changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsruntime import plugin
from dsruntime.tiers.settings import SettingsError

MODEL_SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=64,
              kv_cache_memory_bytes=64 << 20, dtype="float32", max_num_seqs=2)
    worker = llm.llm_engine.vllm_config.parallel_config.worker_cls
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    output = llm.generate([{"prompt_token_ids": list(range(3, 23))}], sampling, use_tqdm=False)
    ours = [name for name in sys.modules if name.startswith("dsruntime.cpu")]
    print("ANSWER", json.dumps([list(output[0].outputs[0].token_ids), worker, ours]))
"""


def configuration(model_type: str, worker: str = "auto") -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(model_type=model_type), enable_sleep_mode=False
        ),
        parallel_config=SimpleNamespace(
            worker_cls=worker, enable_expert_parallel=False, pipeline_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=True,
            max_num_batched_tokens=256,
            async_scheduling=False,
            scheduler_cls=None,
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        additional_config={},
    )


def without_amx(config: Any) -> None:
    """What vLLM's CPU platform does to an MLA model's configuration."""
    config.scheduler_config.enable_chunked_prefill = False
    config.cache_config.enable_prefix_caching = False
    config.scheduler_config.max_num_batched_tokens = 8192
    if config.parallel_config.worker_cls == "auto":
        config.parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"


def test_a_deepseek_v4_configuration_gets_our_worker_and_keeps_its_scheduling() -> None:
    config = configuration("deepseek_v4")
    plugin.settle(config, without_amx)
    assert config.parallel_config.worker_cls == plugin.WORKER
    assert config.scheduler_config.enable_chunked_prefill
    assert config.cache_config.enable_prefix_caching
    assert config.scheduler_config.max_num_batched_tokens == 256


def test_a_worker_that_the_user_names_stays() -> None:
    config = configuration("deepseek_v4", worker="mine.Worker")
    plugin.settle(config, without_amx)
    assert config.parallel_config.worker_cls == "mine.Worker"


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "deepseek_v41"])
def test_another_model_is_settled_by_vllm_alone(model_type: str) -> None:
    config = configuration(model_type)
    plugin.settle(config, without_amx)
    assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert not config.scheduler_config.enable_chunked_prefill


def test_a_configuration_without_a_model_is_left_alone() -> None:
    config = configuration("llama")
    config.model_config = None
    plugin.settle(config, lambda _: None)


def test_our_worker_is_where_the_configuration_says() -> None:
    pytest.importorskip("vllm")
    from vllm.utils.import_utils import resolve_obj_by_qualname

    assert resolve_obj_by_qualname(plugin.WORKER).__name__ == "DeepseekV4Worker"


@pytest.mark.engine
@pytest.mark.slow
def test_another_model_is_served_as_without_us(plugin_path: Path, tmp_path: Path) -> None:
    import json
    import os

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "llama")
    tokens = torch.tensor([list(range(3, 23))])
    want = model.generate(tokens, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    script = tmp_path / "serve.py"
    script.write_text(MODEL_SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "llama")],
        env=os.environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, run.stdout[-2000:] + run.stderr[-2000:]
    answer, worker, ours = json.loads(lines[0].removeprefix("ANSWER "))
    assert answer == want[0, 20:].tolist()
    assert worker == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert ours == []


def test_experts_in_tiers_get_the_worker_that_has_them() -> None:
    config = configuration("deepseek_v4")
    config.additional_config = {"dsruntime": {"experts": "w2-resident", "pack_dir": "/pack"}}
    plugin.settle(config, without_amx)
    assert config.parallel_config.worker_cls == plugin.TIERED_WORKER
    assert config.scheduler_config.scheduler_cls == "dsruntime.tiers.scheduler.TieredScheduler"
    staged = configuration("deepseek_v4")
    staged.additional_config = config.additional_config
    staged.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(SettingsError, match="drop --pipeline-parallel-size"):
        plugin.settle(staged, without_amx)
    plain = configuration("deepseek_v4")
    plugin.settle(plain, without_amx)
    assert plain.scheduler_config.scheduler_cls is None, "experts in FP4 need no scheduler of ours"
