"""The flags are proven: what the engine's own parser and configuration code say."""

from __future__ import annotations

from typing import Any

import pytest

from dsctl.planning.catalog import load_profile
from dsctl.planning.validate import judge, prove

GOOD = {
    "errors": [],
    "unknown_env": [],
    "version": "0.32.0",
    "resolved": {
        "architecture": "DeepseekV4ForCausalLM",
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 4096,
        "block_size": 256,
        "draft": None,
    },
}


def test_a_profile_the_engine_resolves_as_asked_passes() -> None:
    proof = judge(load_profile("cpu-canary"), GOOD)
    assert proof.outcome == "pass"
    assert "0.32.0" in proof.summary


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"unknown_env": ["VLLM_USE_B12X_MOE"]}, "the engine does not know VLLM_USE_B12X_MOE"),
        (
            {"errors": [{"stage": "parser", "text": "unrecognized arguments: --swap-space"}]},
            "parser: unrecognized arguments: --swap-space",
        ),
        (
            {"resolved": {**GOOD["resolved"], "max_model_len": 1024}},  # type: ignore[dict-item]
            "max_model_len=4096 became 1024",
        ),
        ({"version": "0.33.0"}, "this is vLLM 0.33.0; the profile is for 0.32.0"),
    ],
)
def test_what_the_engine_refuses_ignores_or_changes_is_a_fault(
    change: dict[str, Any], fault: str
) -> None:
    proof = judge(load_profile("cpu-canary"), {**GOOD, **change})
    assert proof.outcome == "fail"
    assert fault in proof.faults


def test_what_only_a_third_party_image_knows_is_listed_and_is_no_failure() -> None:
    answer = {**GOOD, "unknown_env": ["VLLM_USE_B12X_MOE"]}
    proof = judge(load_profile("dual96-community-image"), answer)
    assert proof.outcome == "skip"
    assert "the engine does not know VLLM_USE_B12X_MOE" in proof.faults


def test_unsupported_profiles_are_not_asked_about() -> None:
    (proof,) = prove([load_profile("hybrid-cpu")], wheel=None, report=lambda _: None)
    assert proof.outcome == "skip"
