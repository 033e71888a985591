"""The planner: what fits, what does not and why, and the laws it keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsctl.errors import ConfigError, NotGoodError
from dsctl.host.collect import collect
from dsctl.model.plan import Plan, Verdict
from dsctl.planning import speed
from dsctl.planning.budget import timeline
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.choose import bisect, choose, largest
from dsctl.planning.demand import Demand, demand_of
from dsctl.planning.geometry import geometry_of
from dsctl.planning.kvcache import kv_table
from dsctl.planning.machine import Machine, machine_for, machine_from_facts
from dsctl.planning.plan import make_plan, plan_for
from dsctl.planning.quality import Grade, quality_of
from dsctl.planning.units import GIB, gib

HOSTS = sorted(p for p in Path("tests/hosts").iterdir() if p.is_dir())
MODEL = "deepseek-v4-flash-0731"
GEOMETRY = geometry_of(None, MODEL)
TABLE = kv_table(MODEL, "0.32.0", "cuda")
COMPONENTS = {
    "dense_weights",
    "expert_planes",
    "expert_cache",
    "correction_pool",
    "draft_weights",
    "kv_cache",
    "workspace",
    "cuda_graphs",
    "cuda_context",
}


@cache
def machine_of(host: Path) -> Machine:
    return machine_from_facts(collect(host))


def planned(name: str, **overrides: object) -> Plan:
    return make_plan(load_profile(name, {k: str(v) for k, v in overrides.items()}))


@pytest.mark.parametrize("name", sorted(set(profile_names()) - {"hybrid-cpu"}))
def test_every_profile_fits_the_machine_it_is_made_for(name: str) -> None:
    plan = planned(name)
    assert plan.fits, plan.reasons
    for gpu in plan.gpus:
        assert set(gpu.components) <= COMPONENTS
        assert sum(gpu.components.values()) == gpu.steady_bytes
        assert gpu.load_peak_bytes == max(p.peak_bytes for p in gpu.timeline)
        assert gpu.load_peak_bytes <= gpu.capacity_bytes
    assert plan.kv.concurrency_at_max_len >= 1


@pytest.mark.parametrize("host", HOSTS, ids=lambda p: p.name)
@pytest.mark.parametrize("name", profile_names())
def test_every_profile_gets_an_answer_on_every_recorded_host(host: Path, name: str) -> None:
    plan = make_plan(load_profile(name), machine_of(host))
    assert plan.fits or plan.reasons


@pytest.mark.parametrize(
    ("host", "winner"),
    [
        ("workstation-dual-healthy", "dual96-dspark"),
        ("server-two-socket", "single96-resident"),
        ("wsl2-96gb", "single96-wsl"),
        ("display-card", "single96-resident"),
        ("rtx-5090", "cpu-canary"),
        ("laptop-no-gpu", "cpu-canary"),
    ],
)
def test_auto_takes_the_best_that_fits_and_says_why_not_the_others(host: str, winner: str) -> None:
    ranked = choose(machine_of(Path("tests/hosts", host)))
    assert ranked[0].profile.id == winner
    assert not ranked[0].lost_because
    assert all(c.lost_because for c in ranked[1:])
    assert len(ranked) == len(profile_names())


def test_auto_says_when_nothing_fits() -> None:
    machine = machine_for(load_profile("cpu-canary")).model_copy(
        update={"host_available_bytes": 1 << 20}
    )
    with pytest.raises(NotGoodError, match="no profile fits"):
        choose(machine)


def test_a_pool_allocated_first_raises_the_peak_and_allocated_last_does_not() -> None:
    validated = replace(
        demand_of(load_profile("single96-resident")),
        max_model_len=524_288,
        gpu_memory_utilization=0.988,
        pool_bytes=gib(7),
        build="layerwise",
    )
    card = gib(94.97)

    def peak(demand: Demand) -> int:
        return timeline(GEOMETRY, demand, TABLE, int(card * 0.988)).peak.peak_bytes

    first, last = replace(validated, pool_first=True), replace(validated, pool_first=False)
    assert 0.1 * GIB <= peak(first) - card <= 0.7 * GIB
    assert peak(last) <= card
    plan = planned("single96-resident", pool_gib=8, pool_allocation="first", max_model_len=131072)
    first_phase = [p.name for p in plan.gpus[0].timeline].index("pool")
    assert first_phase < [p.name for p in plan.gpus[0].timeline].index("planes")


def test_a_plan_that_does_not_fit_says_what_binds() -> None:
    plan = planned("single96-resident", pool_gib=20)
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert "weights, pool and workspaces alone" in plan.reasons[0]


def test_below_six_gibibytes_of_corrections_quality_is_called_thin() -> None:
    assert quality_of(load_profile("single96-resident")).grade is Grade.CORRECTED
    assert quality_of(load_profile("single96-resident", {"pool_gib": "2"})).grade is Grade.THIN
    degraded = load_profile("single96-basecache", {"replay": "approximate"})
    assert quality_of(degraded).grade is Grade.DEGRADED


def test_largest_is_the_last_that_fits() -> None:
    found = largest("single96-resident", "pool", None)
    assert planned("single96-resident", pool_gib=found.value).fits
    assert not planned("single96-resident", pool_gib=found.value + 0.25).fits
    assert "KV cache" in found.binds
    with pytest.raises(ConfigError, match="not a knob"):
        largest("single96-resident", "port", None)


@given(st.integers(0, 200), st.integers(1, 200))
def test_bisect_finds_the_edge(edge: int, limit: int) -> None:
    assert bisect(lambda n: n <= edge, limit) == min(edge, limit)


RESIDENT = demand_of(load_profile("single96-resident"))
demands = st.builds(
    replace,
    st.just(RESIDENT),
    ranks=st.sampled_from((1, 2)),
    store=st.sampled_from(("native", "w2-resident", "w2-cache")),
    max_model_len=st.integers(1, 1 << 20),
    max_num_seqs=st.integers(1, 64),
    max_num_batched_tokens=st.integers(1, 16_384),
    async_scheduling=st.booleans(),
    gpu_memory_utilization=st.floats(0.5, 1.0),
    kv_bytes=st.one_of(st.none(), st.integers(0, gib(40))),
    pool_bytes=st.integers(0, gib(40)),
    pool_first=st.booleans(),
    base_cache_bytes=st.integers(0, gib(80)),
    draft_tokens=st.integers(0, 5),
    mapped_layers=st.integers(0, 43),
    build=st.sampled_from(("pack", "streamed", "layerwise")),
)
growth = st.sampled_from(("max_model_len", "max_num_seqs", "max_num_batched_tokens", "pool_bytes"))


def need(demand: Demand) -> int:
    """Bytes of a card the demand needs at least, over the whole start."""
    line = timeline(GEOMETRY, replace(demand, kv_bytes=0), TABLE, 0)
    return line.peak.peak_bytes + line.kv_needed_bytes + line.late_bytes


@settings(max_examples=150)
@given(demands, growth, st.integers(1, 1 << 20))
def test_asking_for_more_never_needs_less_memory(demand: Demand, knob: str, more: int) -> None:
    larger: Any = replace(demand, **{knob: getattr(demand, knob) + more})
    assert need(demand) <= need(larger)


@settings(max_examples=150)
@given(demands, growth, st.integers(1, 1 << 20))
def test_what_fits_with_more_fits_with_less(demand: Demand, knob: str, more: int) -> None:
    profile = load_profile("dual96-w2" if demand.ranks == 2 else "single96-resident")
    machine = machine_for(profile)
    larger: Any = replace(demand, **{knob: getattr(demand, knob) + more})

    def fits(asked: Demand) -> bool:
        return plan_for(profile, asked, GEOMETRY, TABLE, machine).fits

    if fits(larger):
        assert fits(demand)


@settings(max_examples=50)
@given(demands)
def test_all_sizes_are_whole_bytes_and_none_is_negative(demand: Demand) -> None:
    line = timeline(GEOMETRY, demand, TABLE, gib(94.97))
    for phase in line.phases:
        assert all(isinstance(size, int) and size >= 0 for size in phase.resident.values())
        assert isinstance(phase.transient_bytes, int)
        assert phase.transient_bytes >= 0


@pytest.mark.parametrize("name", ["single96-resident", "dual96-w2"])
def test_a_pool_that_takes_what_is_left_leaves_its_reserve_and_fits(name: str) -> None:
    asked: dict[str, object] = {"pool_gib": "auto", "kv_cache_memory_bytes": "8G"}
    for reserve in (1.5, 2.5):
        plan = planned(name, **asked, pool_reserve_gib=reserve)
        assert plan.fits
        for gpu in plan.gpus:
            left = gpu.capacity_bytes - gpu.steady_bytes
            full = plan.correction_pool and plan.correction_pool.slots == 43 * 256
            assert full or gib(reserve) <= left < gib(reserve) + gib(0.01)


def test_a_pool_that_takes_what_is_left_needs_a_kv_cache_with_a_size() -> None:
    with pytest.raises(ConfigError, match=r"pool_gib.*auto takes what the KV cache leaves"):
        planned("single96-resident", pool_gib="auto")


def test_on_a_cpu_two_bits_and_their_corrections_are_what_is_counted() -> None:
    native, two = (
        planned("cpu-canary", experts=experts).host.components
        for experts in ("native", "w2-resident")
    )
    assert 0.5 < two["expert_planes"] / native["expert_planes"] < 0.55
    with_pool = planned("cpu-canary", experts="w2-resident", pool_gib=0.5).host.components
    assert with_pool["correction_pool"] == gib(0.5)


def test_slots_carry_their_own_scales_over_a_cache() -> None:
    cached = replace(RESIDENT, store="w2-cache")
    assert speed.pool_slots(GEOMETRY, RESIDENT) == 512
    assert speed.pool_slots(GEOMETRY, cached) == 481


def test_speed_estimates_hold_what_people_measured() -> None:
    for name, knobs, low, high in (
        ("single96-resident", {}, 39.8, 39.8),
        ("single96-dspark", {}, 55.0, 55.0),
        ("dual96-native", {"peer_to_peer": "on"}, 150.5, 152.6),
        ("dual96-dspark", {"peer_to_peer": "on"}, 205.5, 236.5),
    ):
        decode = planned(name, **knobs).speed
        assert decode is not None
        assert decode.decode.low <= low
        assert high <= decode.decode.high


def test_the_way_through_host_memory_costs_decode_and_no_memory() -> None:
    on, off = (planned("dual96-native", peer_to_peer=p) for p in ("on", "off"))
    assert on.speed is not None
    assert off.speed is not None
    assert 0.75 < off.speed.decode.bound / on.speed.decode.bound < 0.85
    assert on.gpus == off.gpus


def dsctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsctl", *arguments], capture_output=True, text=True, check=False
    )


def test_the_json_has_the_promised_shape() -> None:
    done = dsctl("plan", "--profile", "single96-resident", "--reference", "--format", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["profile"] == "single96-resident"
    assert plan["verdict"] in ("fits", "tight")
    assert {"index", "capacity_bytes", "components", "steady_bytes", "load_peak_bytes"} <= set(
        plan["gpus"][0]
    )
    assert {"steady_bytes", "load_peak_bytes", "available_bytes"} <= set(plan["host"])
    assert plan["disk"]["required_bytes"] > 0
    assert {"bytes_per_token", "tokens", "concurrency_at_max_len"} <= set(plan["kv"])
    assert plan["correction_pool"] == {"slots": 512, "slot_bytes": 12 << 20}


def test_a_plan_that_does_not_fit_exits_with_one() -> None:
    done = dsctl("plan", "-p", "single96-resident", "--sysroot", "tests/hosts/laptop-no-gpu")
    assert done.returncode == 1
    assert "needs 1 GPU, there are none" in done.stdout
    assert "Traceback" not in done.stderr


def test_bad_input_of_the_plan_is_one_line() -> None:
    for arguments in (
        ("--profile", "nobody"),
        ("--profile", "cpu-canary", "--set", "pool_gb=1"),
        ("--profile", "cpu-canary", "--facts", "/nowhere.json"),
        ("--profile", "cpu-canary", "--chart", "plan.gif"),
    ):
        done = dsctl("plan", *arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert "what to do:" in done.stderr
