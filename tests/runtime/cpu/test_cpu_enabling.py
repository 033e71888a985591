"""Which fixes a situation needs, what is defined where, and what the log says."""

from __future__ import annotations

import pytest
import torch

from dsruntime.cpu import enable
from dsruntime.cpu.features import CpuFeatures
from dsruntime.cpu.ops import registry
from dsruntime.cpu.patches import PATCHES, Patch, Situation, apply_needed, base

PLAIN = CpuFeatures(amx_tile=False, bf16_dot=False)
BF16 = CpuFeatures(amx_tile=False, bf16_dot=True)
AMX = CpuFeatures(amx_tile=True, bf16_dot=True)
TOPK = frozenset({"topk_transform_512_cpu"})
NO_AMX = {"tile-schedule", "index-topk", "fp8-blocks", "fp4-experts"}


@pytest.mark.parametrize(
    ("cpu", "ops", "drafts", "needed"),
    [
        (PLAIN, TOPK, 0, NO_AMX | {"fp32-products"}),
        (BF16, TOPK, 0, NO_AMX),
        (BF16, TOPK, 2, NO_AMX | {"draft-rows"}),
        (AMX, frozenset(), 0, {"tile-schedule"}),
        (AMX, frozenset(), 1, {"tile-schedule", "draft-rows"}),
    ],
)  # fmt: skip
def test_a_cpu_gets_the_fixes_it_needs_and_no_others(cpu, ops, drafts, needed) -> None:  # type: ignore[no-untyped-def]
    situation = Situation(cpu, ops, ranks=1, speculative_tokens=drafts)
    assert {patch.name for patch in PATCHES if patch.needed(situation)} == needed


def test_a_fix_is_applied_once_however_often_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_applied", set())
    calls: list[str] = []
    patch = Patch("x", "why", needed=lambda _: True, apply=lambda _: calls.append("x"))
    situation = Situation(PLAIN, TOPK, 1, 0)
    for _ in range(2):
        assert apply_needed([patch], situation) == [patch]
    assert calls == ["x"]


def test_fixes_have_names_of_their_own_and_say_why() -> None:
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
    assert all(patch.why and patch.apply.__doc__ for patch in PATCHES)


def test_only_missing_operators_are_defined_and_only_once() -> None:
    library = torch.library.Library("dsruntime_test", "FRAGMENT")
    present = registry.PORTABLE["hc_post_fused_cpu"]
    library.define(present.schema)
    library.impl(present.name, lambda *_: torch.full((1,), 42.0), "CPU")
    defined = registry.define_missing("dsruntime_test")
    assert present.name not in defined
    assert set(defined) == set(registry.PORTABLE) - {present.name}
    assert registry.define_missing("dsruntime_test") == []
    kept = torch.ops.dsruntime_test.hc_post_fused_cpu(*[torch.zeros(1)] * 4)
    assert kept.item() == 42.0


@pytest.mark.parametrize("name", sorted(registry.PORTABLE))
def test_vllm_calls_every_operator_with_the_parameters_of_its_schema(name: str) -> None:
    """vLLM's own wrappers are the callers; their signatures are the contract."""
    import inspect

    from vllm import _custom_ops

    wrapper = getattr(_custom_ops, name, None)
    taken = list(inspect.signature(registry.PORTABLE[name].cpu).parameters)
    if wrapper is not None:
        assert list(inspect.signature(wrapper).parameters) == taken
    schema = torch._C.parse_schema(registry.PORTABLE[name].schema)
    assert [argument.name for argument in schema.arguments] == taken


def test_the_log_line_says_what_is_on_and_why() -> None:
    fix = Patch("a-fix", "because", needed=lambda _: True, apply=lambda _: None)
    line = enable.describe(PLAIN, 18, 7, [fix])
    assert "no AMX" in line
    assert "18 portable operators" in line
    assert "7 metadata kernels" in line
    assert "float32" in line
    assert "a-fix (because)" in line
    assert "\n" not in line
