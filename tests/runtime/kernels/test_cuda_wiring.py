"""What the plugin does on CUDA, as far as a machine without it can tell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsruntime import plugin
from dsruntime.tiers.settings import SettingsError
from tests.runtime.plugin.test_runtime_plugin import configuration

GPU_WORKER = "vllm.v1.worker.gpu_worker.Worker"


def by_vllm(config: Any) -> None:
    """What vLLM's CUDA platform does."""
    if config.parallel_config.worker_cls == "auto":
        config.parallel_config.worker_cls = GPU_WORKER


def asking(model_type: str = "deepseek_v4", **ours: Any) -> Any:
    config = configuration(model_type)
    config.additional_config = {"dsruntime": ours}
    return config


@pytest.fixture(autouse=True)
def no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsruntime.tiers import metrics

    monkeypatch.setattr(metrics, "serve", lambda: None)


def test_experts_in_tiers_get_the_worker_that_has_them_on_a_card() -> None:
    config = asking(experts="w2-resident", pack_dir="/pack", pool_gib=6)
    plugin.settle_cuda(config, by_vllm)
    assert config.parallel_config.worker_cls == plugin.DEVICE_WORKER


@pytest.mark.parametrize("config", [asking(), asking("llama", experts="w2-resident")])
def test_whoever_asks_for_no_tiers_is_left_to_vllm(config: Any) -> None:
    plugin.settle_cuda(config, by_vllm)
    assert config.parallel_config.worker_cls == GPU_WORKER


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        ({"experts": "w2-cache", "base_cache_gib": 20}, "experts: w2-cache"),
        ({"experts": "w2-resident", "mapped_layers": [1]}, "mapped_layers"),
        (
            {"experts": "w2-resident", "pool_gib": 1, "prefill_policy": "ensure"},
            "prefill_policy: ensure",
        ),
    ],
)
def test_what_only_the_cpu_can_do_yet_is_refused_by_name(ours: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=f"dsruntime.{named}: not on a GPU yet"):
        plugin.settle_cuda(asking(pack_dir="/pack", **ours), by_vllm)


def test_what_would_discard_the_base_or_the_pool_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asleep = asking(experts="w2-resident", pack_dir="/pack")
    asleep.model_config.enable_sleep_mode = True
    with pytest.raises(SettingsError, match="drop --enable-sleep-mode"):
        plugin.settle_cuda(asleep, by_vllm)
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    with pytest.raises(SettingsError, match="VLLM_ENABLE_STARTUP_PLAN"):
        plugin.settle_cuda(asking(experts="w2-resident", pack_dir="/pack"), by_vllm)


def test_rows_that_fill_up_a_graph_have_no_experts() -> None:
    from vllm.forward_context import ForwardContext, override_forward_context

    from dsruntime.kernels.method import without_padding

    ids = torch.tensor([[3, 5], [1, 2], [0, 7]], dtype=torch.int32)
    assert without_padding(ids) is ids, "outside a step nothing is known"
    context = ForwardContext.__new__(ForwardContext)
    context.is_padding = torch.tensor([False, False, True, True])
    with override_forward_context(context):
        assert without_padding(ids).tolist() == [[3, 5], [1, 2], [-1, -1]]
        context.is_padding = None
        assert without_padding(ids) is ids


def test_a_platform_is_hooked_once() -> None:
    class Platform:
        settled = 0

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            cls.settled += 1
            by_vllm(vllm_config)

    for _ in range(2):
        plugin._hook(Platform, plugin.settle_cuda)
    config = asking(experts="w2-resident", pack_dir="/pack")
    Platform.check_and_update_config(config)
    assert Platform.settled == 1
    assert config.parallel_config.worker_cls == plugin.DEVICE_WORKER


def test_the_worker_is_where_the_configuration_says_and_is_vllms_with_our_hooks_first() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.gpu_worker import Worker

    from dsruntime.tiers.hooks import TierHooks

    worker = resolve_obj_by_qualname(plugin.DEVICE_WORKER)
    assert worker.__mro__[1:3] == (TierHooks, Worker)


def test_the_models_own_experts_are_ours_and_the_drafts_are_not(tmp_path: Path) -> None:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    from dsruntime.kernels.method import DeviceExpertsMethod
    from dsruntime.kernels.worker import chooser

    model = SimpleNamespace(dtype=torch.bfloat16, hf_config=SimpleNamespace(num_hidden_layers=43))
    choose = chooser(SimpleNamespace(), model)  # type: ignore[arg-type]
    experts = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(experts)
    experts.moe_config = SimpleNamespace()

    def chosen(layer: Any, prefix: str) -> Any:
        return choose(lambda *_: "vllm's", None, layer, prefix)

    assert isinstance(chosen(experts, "model.layers.42.ffn.experts"), DeviceExpertsMethod)
    assert chosen(experts, "model.layers.43.ffn.experts") == "vllm's"
    assert chosen(torch.nn.Linear(1, 1), "model.layers.0.attn.wq_a") == "vllm's"
