"""The base tier's knobs: read, counted in plans, passed on, refused where they make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsctl.engine.command import engine_command
from dsctl.errors import ConfigError
from dsctl.model.endpoint import Endpoint
from dsctl.model.plan import Plan, Verdict
from dsctl.planning.catalog import load_profile
from dsctl.planning.knobs import KNOBS
from dsctl.planning.layers import parse_layers
from dsctl.planning.plan import make_plan
from dsctl.planning.startable import lack_of
from dsctl.planning.units import gib

CACHED = {"experts": "w2-cache", "base_cache_gib": "0.001", "pack_dir": "/packs/a"}
EXPERT_BYTES = 55_296
"""Of the canary: 2-bit codes and scales of three matrices of 256 x 256."""


def planned(profile: str = "cpu-canary", **knobs: str) -> Plan:
    return make_plan(load_profile(profile, knobs))


def argv(**knobs: str) -> list[str]:
    endpoint = Endpoint(host="127.0.0.1", port=8000)
    profile = load_profile("cpu-canary", knobs)
    return list(engine_command(profile, endpoint=endpoint, checkpoint=Path("/model")).argv)


@pytest.mark.parametrize(
    ("text", "layers"), [("0-2,5", {0, 1, 2, 5}), ("7", {7}), ("", set()), ("3, 1-2", {1, 2, 3})]
)
def test_layers_are_written_as_numbers_and_ranges(text: str, layers: set[int]) -> None:
    assert parse_layers(text) == layers
    assert KNOBS["mapped_layers"].parse(text) == text


@pytest.mark.parametrize("text", ["a", "2-", "3-1", "-1", "0..2", "99999"])
def test_what_is_no_range_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layer or a range of layers"):
        KNOBS["mapped_layers"].parse(text)
    with pytest.raises(ConfigError, match="mapped_layers"):
        load_profile("cpu-canary", {"mapped_layers": text})


def test_up_starts_a_base_cache_on_the_cpu() -> None:
    assert lack_of(load_profile("cpu-canary", CACHED)) is None
    assert lack_of(load_profile("single96-basecache")) is not None


def test_the_plugin_is_told_all_of_it() -> None:
    more = {
        "arena_gib": "0.5", "mapped_layers": "0-1", "replay": "strict", "gate_threshold": "0.6",
        "gate_budget": "8",
    }  # fmt: skip
    words = argv(**CACHED, **more)
    told = json.loads(words[words.index("--additional-config") + 1])["dsruntime"]
    assert told == {
        "experts": "w2-cache", "base_cache_gib": 0.001, "pack_dir": "/packs/a", "arena_gib": 0.5,
        "mapped_layers": "0-1", "replay": "strict", "gate_threshold": 0.6, "gate_budget": 8,
    }  # fmt: skip
    assert "--middleware" not in words


def test_a_server_that_may_approximate_marks_its_responses() -> None:
    words = argv(**CACHED, replay="approximate")
    assert words[words.index("--middleware") + 1] == "dsruntime.tiers.marking.MarksApproximate"


def test_a_cpus_plan_counts_cache_and_arena_and_leaves_mapped_layers_out() -> None:
    resident = planned(experts="w2-resident", pack_dir="/p").host.components
    assert resident["expert_planes"] == 32 * EXPERT_BYTES
    mapped = planned(experts="w2-resident", pack_dir="/p", mapped_layers="0-2").host.components
    assert mapped["expert_planes"] == 8 * EXPERT_BYTES
    cached = planned(**CACHED, arena_gib="0.0005").host.components
    assert cached["expert_cache"] == gib(0.001)
    assert cached["arena"] == gib(0.0005)
    assert "expert_planes" not in cached
    assert planned(**CACHED, arena_gib="5").host.components["arena"] == 32 * EXPERT_BYTES


def test_a_cache_below_a_steps_working_set_is_tight_and_says_so() -> None:
    plan = planned(**CACHED)
    assert plan.verdict is Verdict.TIGHT
    assert "17 experts are cached" in plan.reasons[0]
    assert "4 sequences uses up to 32" in plan.reasons[0]
    alone = planned(**CACHED, max_num_seqs="1")
    assert not any("base_cache_gib" in reason for reason in alone.reasons)


def test_a_cache_of_three_experts_does_not_fit() -> None:
    plan = planned(**CACHED | {"base_cache_gib": str(3.9 * EXPERT_BYTES / 2**30)})
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert "hold 3 experts" in plan.reasons[0]


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"experts": "w2-cache", "pack_dir": "/p"}, "'base_cache_gib' is not set"),
        ({"arena_gib": "1"}, "'arena_gib' has no meaning with experts=native"),
        ({"experts": "w2-resident", "arena_gib": "1"}, "'arena_gib' has no meaning with experts="),
        ({"experts": "w2-resident", "replay": "approximate"}, "'replay' has no meaning"),
        ({**CACHED, "mapped_layers": "1,9"}, "there is no layer 9; the model has layers 0 to 3"),
    ],
)
def test_what_no_machine_could_serve_is_refused_by_name(knobs: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(**knobs)


def test_the_recorded_card_profiles_still_fit_their_working_sets() -> None:
    for name in ("single96-basecache", "single96-dspark"):
        assert not any("base_cache_gib" in reason for reason in planned(name).reasons), name
