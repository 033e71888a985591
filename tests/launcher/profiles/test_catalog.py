"""Profiles as data: what loads, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.model.profile import Profile, Source, Status
from dsctl.planning.catalog import load_profile, profile_names, read_profile
from dsctl.planning.plan import make_plan

CANARY = """\
schema: 1
id: mine
title: t
summary: s
status: supported
verified: none
hardware: {device: cpu}
engine: {version: 0.32.0, environment: cpu}
model: {checkpoint: c, served_name: m, geometry: canary}
knobs:
  max_model_len: {value: 4096, source: choice, why: short}
"""


def write(directory: Path, text: str, name: str = "mine") -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _no_user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(params=profile_names())
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile(request.param)


def test_the_ten_profiles_are_there() -> None:
    assert set(profile_names()) == {
        "cpu-canary",
        "dual96-community-image",
        "dual96-dspark",
        "dual96-native",
        "dual96-w2",
        "hybrid-cpu",
        "single96-basecache",
        "single96-dspark",
        "single96-resident",
        "single96-wsl",
    }


def test_whoever_claims_a_gpu_run_has_measured_on_one(profile: Profile) -> None:
    assert str(profile.verified) != "gpu" or profile.measured


def test_runtime_and_plugin_list_agree(profile: Profile) -> None:
    if profile.engine.external or profile.status is Status.UNSUPPORTED:
        return
    plugins = profile.env["VLLM_PLUGINS"].value
    assert ("dsruntime" in plugins) == profile.engine.runtime


def test_nothing_phones_home(profile: Profile) -> None:
    if profile.status is Status.UNSUPPORTED:
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        assert profile.env[name].value == 1


def test_the_draft_never_exceeds_the_block(profile: Profile) -> None:
    assert profile.value("draft_tokens", 0) <= 5


def test_a_retry_for_want_of_memory_asks_for_less_and_still_fits(profile: Profile) -> None:
    for retry in profile.retry:
        if not any(cause.startswith("memory.") for cause in retry.causes):
            continue
        asked = [profile.value(retry.knob), *retry.values]
        assert asked == sorted(asked, reverse=True)
        assert len(set(asked)) == len(asked)
        for value in retry.values:
            assert make_plan(load_profile(profile.id, {retry.knob: str(value)})).fits


def test_an_override_beats_the_users_file_beats_the_profile(tmp_path: Path) -> None:
    mine = tmp_path / "profiles.yaml"
    mine.write_text("'single96-*':\n  pool_gib: 5\n  max_num_seqs: 2\n")
    resolved = load_profile("single96-resident", {"pool_gib": "7"}, mine)
    assert resolved.value("pool_gib") == 7
    assert resolved.knobs["pool_gib"].ref == "--set"
    assert resolved.value("max_num_seqs") == 2
    assert resolved.knobs["max_num_seqs"].source is Source.USER
    assert resolved.knobs["max_num_seqs"].ref == f"{mine}:3"
    assert resolved.value("block_size") == 256


def test_a_child_keeps_what_it_does_not_change_and_drops_what_it_nulls() -> None:
    parent, child = load_profile("single96-resident"), load_profile("single96-wsl")
    assert child.value("tokenizer_mode") == parent.value("tokenizer_mode")
    assert "PYTORCH_CUDA_ALLOC_CONF" in parent.env
    assert "PYTORCH_CUDA_ALLOC_CONF" not in child.env


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (CANARY.replace("title:", "titel:"), "mine.yaml:3: key 'titel': unknown key", "'title'"),
        (
            CANARY.replace("max_model_len:", "max_model_length:"),
            "mine.yaml:11: key 'knobs.max_model_length': unknown knob",
            "'max_model_len'",
        ),
        (
            CANARY.replace("4096", "many"),
            "mine.yaml:11: key 'knobs.max_model_len': 'many' is not a whole number",
            "",
        ),
        (
            CANARY.replace(", why: short", ""),
            "mine.yaml:11: key 'knobs.max_model_len': a value of source 'choice' needs a 'why'",
            "",
        ),
        (CANARY.replace("device: cpu", "device: tpu"), "mine.yaml:7: key 'hardware.device'", ""),
        (CANARY.replace("version: 0.32.0, ", ""), "key 'engine.version': is missing", "add it"),
        (CANARY.replace("schema: 1", "schema: 9"), "mine.yaml:1: key 'schema': 9", "update"),
        (CANARY.replace("id: mine", "id: other"), "mine.yaml:2: key 'id'", "id: mine"),
        (CANARY + "title: again\n", "mine.yaml:12: key 'title': given twice", "keep one"),
        (CANARY + "extends: nobody\n", "key 'extends': unknown profile 'nobody'", ""),
        (CANARY + "extends: single96-wsl\n", "one level is all there is", "extend"),
        (CANARY + "  - [\n", "mine.yaml:12: not valid YAML", "line 12"),
        ("just words\n", "mine.yaml:1: is not a mapping", "dsctl profiles show"),
        ("", "mine.yaml:1: is not a mapping", "dsctl profiles show"),
        (CANARY.replace("knobs:", "knobs: 3\nenv:"), "mine.yaml:10: key 'knobs'", ""),
    ],
)
def test_a_bad_file_is_refused_in_one_line_with_file_line_and_key(
    tmp_path: Path, text: str, message: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_profile(write(tmp_path, text))
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        ({"max_num_sqs": "2"}, "--set max_num_sqs: unknown knob", "'max_num_seqs'"),
        ({"max-model-len": "2"}, "unknown knob", "'max_model_len'"),
        ({"max_num_seqs": "two"}, "'two' is not a whole number", ""),
        ({"max_num_seqs": "0"}, "0 is below 1", ""),
        ({"gpu_memory_utilization": "1.2"}, "1.2 is above 1", ""),
        ({"pool_gib": "nan"}, "nan is not a finite number", ""),
        ({"pool_allocation": "middle"}, "not one of first, last", ""),
        ({"draft_tokens": "7"}, "7 is above 5", ""),
        ({"enforce_eager": "maybe"}, "neither true nor false", ""),
    ],
)
def test_a_bad_override_names_the_knob(
    overrides: dict[str, str], message: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("cpu-canary", overrides)
    assert message in caught.value.message
    assert remedy in (caught.value.remedy or "")


def test_an_unknown_profile_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'cpu-cannary'") as caught:
        load_profile("cpu-cannary")
    assert caught.value.remedy == "did you mean 'cpu-canary'?"


def test_a_pattern_in_the_users_file_must_match_something(tmp_path: Path) -> None:
    mine = tmp_path / "profiles.yaml"
    mine.write_text("single69-resident: {port: 1}\n")
    with pytest.raises(ConfigError, match=r"profiles.yaml:1: key 'single69-resident'") as caught:
        load_profile("cpu-canary", {}, mine)
    assert "single96-resident" in (caught.value.remedy or "")


def test_sizes_may_carry_the_engines_own_suffixes() -> None:
    assert load_profile("cpu-canary", {"max_model_len": "4K"}).value("max_model_len") == 4096
    assert load_profile("cpu-canary", {"max_model_len": "4k"}).value("max_model_len") == 4000
