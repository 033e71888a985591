"""Single checks: one fact changed, one judgement changed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.host.collect import collect
from dsctl.model.facts import Facts, Listener, Nvml, NvmlState, Python, SwapDevice, SwapKind
from dsctl.model.finding import Status
from dsctl.model.profile import Knob, Profile, Source
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile
from dsctl.preflight.proofs import Proof, fingerprint, keep_proof
from dsctl.preflight.registry import CHECKS, CheckContext, Outcome, apply
from dsctl.preflight.run import run_checks, with_plan

HOSTS = Path(__file__).parents[2] / "hosts"
GIB = 1 << 30


@cache
def recorded(host: str) -> Facts:
    return collect(HOSTS / host)


@cache
def profile(name: str, **overrides: str) -> Profile:
    return load_profile(name, overrides)


def ask(check: str, facts: Facts, name: str = "single96-resident", **knobs: Any) -> Outcome:
    chosen = profile(name)
    if knobs:
        own = {k: Knob(value=v, source=Source.USER) for k, v in knobs.items()}
        chosen = chosen.model_copy(update={"knobs": {**chosen.knobs, **own}})
    return apply(CHECKS[check], with_plan(CheckContext(facts, chosen)))


def change(facts: Facts, section: str, **fields: Any) -> Facts:
    return facts.model_copy(update={section: getattr(facts, section).model_copy(update=fields)})


def change_gpu(facts: Facts, index: int = 0, **fields: Any) -> Facts:
    gpus = list(facts.gpus)
    gpus[index] = gpus[index].model_copy(update=fields)
    return change(facts, "nvml", gpus=tuple(gpus))


SERVER = "server-two-socket"
HEALTHY = "workstation-dual-healthy"


# Memory and swap


def test_page_cache_counts_as_available() -> None:
    memory = recorded(SERVER).memory
    assert memory is not None
    tight = change(recorded(SERVER), "memory", free_bytes=GIB, available_bytes=200 * GIB)
    assert ask("host.memory-available", tight).status is Status.PASS


def test_a_control_groups_limit_is_the_memory_there_is() -> None:
    limited = change(recorded(SERVER), "memory", limit_bytes=4 * GIB)
    found = ask("host.memory-total", limited)
    assert found.status is Status.FAIL
    assert "control group" in found.summary


def swap(used: int = 0, size: int = 32 * GIB, kind: str = "file", rotational: bool = False) -> Any:
    return (
        SwapDevice(
            path="/swap",
            kind=SwapKind(kind),
            size_bytes=size,
            used_bytes=used,
            priority=-2,
            rotational=rotational,
        ),
    )


@pytest.mark.parametrize(
    ("devices", "available_gib", "status"),
    [
        ((), 200, Status.PASS),  # no swap, and none needed
        ((), 7, Status.WARN),  # no swap behind a peak that just fits
        ((), 5, Status.FAIL),  # no swap, and the peak does not fit
        (swap(), 5, Status.PASS),  # swap catches the rest
        (swap(size=1 * GIB), 5, Status.FAIL),  # too small to catch it
        (swap(rotational=True), 5, Status.WARN),
        (swap(kind="zram"), 5, Status.WARN),
        (swap(kind="zram"), 200, Status.PASS),  # it does not lean on it
        (swap(used=5 * GIB), 200, Status.WARN),  # in use before anything starts
        (swap(used=5 * GIB), 5, Status.FAIL),
        (swap(used=500 << 20), 200, Status.PASS),  # what a long-running desktop has
    ],
)
def test_swap(devices: Any, available_gib: int, status: Status) -> None:
    facts = change(recorded(SERVER), "memory", available_bytes=available_gib * GIB)
    facts = facts.model_copy(update={"swap": devices})
    assert ask("host.swap", facts).status is status


@given(more=st.integers(min_value=0, max_value=200))
def test_more_available_memory_never_makes_it_worse(more: int) -> None:
    order = [Status.FAIL, Status.WARN, Status.PASS]

    def rank(available: int) -> int:
        facts = change(recorded(SERVER), "memory", available_bytes=available)
        return order.index(ask("host.memory-available", facts).status)

    assert rank((5 + more) * GIB) >= rank(5 * GIB)


def test_a_bind_to_one_node_is_compared_with_the_need() -> None:
    bound = change(recorded(SERVER), "numa", allowed=(1,))
    small = change(bound, "memory", total_bytes=219 * GIB)
    nodes = small.numa.nodes if small.numa else ()
    tiny = change(small, "numa", nodes=(nodes[0], nodes[1].model_copy(update={"total_bytes": GIB})))
    found = ask("host.numa", tiny)
    assert found.status is Status.FAIL
    assert "numactl" in found.remedy


# Cards and driver


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (NvmlState.SILENT, "does not answer"),
        (NvmlState.LOST, "fell off the bus"),
        (NvmlState.MISMATCH, "does not fit"),
        (NvmlState.ERROR, "fails"),
    ],
)
def test_a_driver_that_does_not_serve_says_how_and_the_others_skip(
    state: NvmlState, says: str
) -> None:
    facts = recorded(SERVER).model_copy(
        update={"nvml": Nvml(state=state, error="x", stuck_in="nvmlInit_v2")}
    )
    report = run_checks(with_plan(CheckContext(facts, profile("single96-resident"))))
    by_id = {f.id: f for f in report.findings}
    assert by_id["gpu.present"].status is Status.FAIL
    assert says in by_id["gpu.present"].summary
    assert by_id["gpu.vram-total"].status is Status.SKIP
    assert by_id["host.memory-total"].status is not Status.SKIP


def test_memory_held_by_others_names_who_holds_it() -> None:
    found = ask("gpu.vram-free", recorded("swapping"))
    assert found.status is Status.FAIL
    assert "48211" in found.remedy
    assert "EngineCore" in found.detail


def test_what_the_driver_keeps_for_itself_is_not_held_by_others() -> None:
    assert ask(
        "gpu.vram-free", change_gpu(recorded(SERVER), memory_used_bytes=600 << 20)
    ).status is (Status.PASS)


@pytest.mark.parametrize(
    ("version", "name", "status"),
    [
        ("575.57.08", "single96-resident", Status.FAIL),
        ("580.167.08", "single96-resident", Status.PASS),
        ("590.48.01", "single96-resident", Status.WARN),
        ("610.43.02", "single96-resident", Status.PASS),  # only matters where much is pinned
        ("610.43.02", "single96-basecache", Status.WARN),
        ("615.71.09", "single96-basecache", Status.PASS),
    ],
)
def test_drivers(version: str, name: str, status: Status) -> None:
    assert ask(
        "gpu.driver", change(recorded(SERVER), "nvml", driver_version=version), name
    ).status is (status)


def test_a_library_newer_than_the_module_is_a_mismatch_even_while_nvml_answers() -> None:
    facts = change(recorded(SERVER), "nvml", driver_version="615.71.09")
    assert ask("gpu.driver-mismatch", facts).status is Status.FAIL


def test_blackwell_refuses_the_proprietary_module() -> None:
    facts = change(recorded(SERVER), "kernel_module", is_open=False)
    assert ask("gpu.open-kernel-module", facts).status is Status.FAIL


def test_mig_and_heat() -> None:
    assert ask("gpu.mig", change_gpu(recorded(SERVER), mig_mode=True)).status is Status.FAIL
    hot = change_gpu(recorded(SERVER), temperature_c=78)
    assert ask("gpu.temperature", hot).status is Status.WARN


# Links


def test_an_idle_card_at_a_low_speed_is_no_finding() -> None:
    found = ask("pcie.link-speed", recorded(HEALTHY), "single96-basecache")
    assert found.status is Status.PASS
    assert "idle" in found.summary


def test_a_card_at_work_at_a_low_speed_is_one() -> None:
    awake = change_gpu(recorded(HEALTHY), power_draw_w=420.0)
    found = ask("pcie.link-speed", awake, "single96-basecache")
    assert found.status is Status.WARN
    assert "stays at 2.5 GT/s" in found.summary


def test_a_gen4_path_costs_the_cache_and_means_nothing_to_the_resident_base() -> None:
    cache_ = ask("pcie.link-speed", recorded(SERVER), "single96-basecache")
    assert cache_.status is Status.WARN
    assert "25.8 of 51.6 GiB/s" in cache_.summary
    assert "2.0 times" in cache_.detail
    assert ask("pcie.link-speed", recorded(SERVER)).status is Status.PASS


def test_a_switch_of_an_older_generation_upstream_is_the_culprit_that_is_named() -> None:
    found = ask("pcie.link-speed", recorded(SERVER), "single96-basecache")
    assert "0000:4a:02.0" in found.summary


def test_without_the_bridges_a_card_at_gen4_of_gen5_sits_in_a_gen4_slot() -> None:
    facts = recorded(SERVER)
    assert facts.pcie is not None
    (card,) = facts.pcie.gpus
    alone = change(facts, "pcie", devices=(card.model_copy(update={"link_speed": 16.0}),))
    found = ask("pcie.link-speed", alone, "single96-basecache")
    assert found.status is Status.WARN
    assert "Gen4 ×16" in found.summary


def test_where_sysfs_has_no_card_the_drivers_word_counts() -> None:
    facts = change_gpu(recorded("wsl2-96gb"), pcie_gen_current=4, pcie_gen_max=4)
    found = ask("pcie.link-speed", facts, "single96-basecache")
    assert found.status is Status.WARN
    assert "its slot does 16" in found.summary


# Peers


def with_off(facts: Facts, **knobs: Any) -> Status:
    return ask("pcie.p2p", facts, "dual96-native", **knobs).status


def test_peer_access_is_off_unless_proven_and_both_users_together() -> None:
    for facts in (recorded("workstation-dual-iommu"), recorded(HEALTHY)):
        assert with_off(facts) is Status.PASS
        assert with_off(facts, peer_to_peer="on") is Status.FAIL
        assert with_off(facts, peer_to_peer="on", disable_custom_all_reduce=True) is Status.FAIL


def test_off_offers_the_proving_run_where_it_can_succeed() -> None:
    def detail(host: str) -> str:
        return ask("pcie.p2p", recorded(host), "dual96-native").detail

    assert "--prove-p2p` (under a minute) finds out" in detail(HEALTHY)
    assert "mend those first" in detail("workstation-dual-iommu")


@pytest.mark.parametrize("name", ["dual96-native", "dual96-dspark", "dual96-w2"])
def test_profiles_for_two_cards_ship_with_peer_access_off(name: str) -> None:
    assert profile(name).value("peer_to_peer") == "off"


def test_with_peer_access_off_iommu_and_acs_only_warn() -> None:
    facts = recorded("workstation-dual-iommu")
    for check in ("pcie.iommu", "pcie.acs"):
        assert ask(check, facts, "dual96-native", peer_to_peer="on").status is Status.FAIL
        assert ask(check, facts, "dual96-native").status is Status.WARN


def test_a_proof_holds_for_the_hardware_it_was_made_on_only(tmp_path: Path) -> None:
    paths = Paths(data=tmp_path, state=tmp_path, cache=tmp_path, config=tmp_path)
    live = recorded(HEALTHY).model_copy(update={"source": "live"})
    keep_proof(Proof(verdict="healthy", fingerprint=fingerprint(live), when="today"), paths)

    def judge(facts: Facts, peers: str = "on") -> Status:
        context = CheckContext(facts, profile("dual96-native", peer_to_peer=peers), paths=paths)
        return apply(CHECKS["pcie.p2p"], context).status

    assert judge(live) is Status.PASS
    assert judge(change(live, "system", bios_version="0902")) is Status.FAIL
    assert judge(live.model_copy(update={"source": "recorded"})) is Status.FAIL
    for verdict in ("hang", "wrong data"):
        keep_proof(Proof(verdict=verdict, fingerprint=fingerprint(live), when="today"), paths)
        assert judge(live) is Status.FAIL
        assert judge(live, "off") is Status.WARN


# WSL, flags, network


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("single96-basecache", Status.FAIL),  # pinned memory: refused, not warned
        ("single96-wsl", Status.PASS),
        ("cpu-canary", Status.PASS),
    ],
)
def test_wsl2(name: str, status: Status) -> None:
    assert ask("host.wsl", recorded("wsl2-96gb"), name).status is status


@pytest.mark.parametrize(
    ("utilization", "status"), [(0.944, Status.PASS), (0.945, Status.FAIL), (0.97, Status.FAIL)]
)
def test_beside_windows_no_more_than_0944_of_the_card(utilization: float, status: Status) -> None:
    facts = recorded("wsl2-96gb")
    found = ask("host.wsl", facts, "single96-wsl", gpu_memory_utilization=utilization)
    assert found.status is status
    if status is Status.FAIL:
        assert "`--set gpu_memory_utilization=0.944`" in found.remedy


def test_wsl_says_how_to_get_more_than_half_of_the_memory() -> None:
    small = change(recorded("wsl2-96gb"), "memory", total_bytes=6 * GIB)
    assert ".wslconfig" in ask("host.memory-total", small, "single96-wsl").remedy


@pytest.mark.parametrize(
    ("knobs", "status"),
    [
        ({}, Status.PASS),
        ({"moe_backend": "deep_gemm_mega_moe"}, Status.FAIL),
        ({"attention_backend": "B12X_MLA_SPARSE"}, Status.FAIL),
        ({"kv_cache_dtype": "auto"}, Status.FAIL),
        ({"max_cudagraph_capture_size": 2, "max_num_seqs": 8}, Status.WARN),
    ],
)
def test_settings_of_another_card_or_another_fork(knobs: dict[str, Any], status: Status) -> None:
    assert ask("profile.flags", recorded(SERVER), "single96-resident", **knobs).status is status


def test_a_port_in_use_offers_a_free_one() -> None:
    busy = recorded(SERVER).model_copy(
        update={"listeners": (Listener(port=8000), Listener(port=8001))}
    )
    found = ask("net.port", busy, "cpu-canary")
    assert found.status is Status.FAIL
    assert "--set port=8002" in found.remedy


def test_ignoring_turns_a_fail_into_a_warn_and_an_unknown_id_is_refused() -> None:
    from dsctl.errors import ConfigError

    context = with_plan(CheckContext(recorded("rented-vm"), profile("cpu-canary")))
    report = run_checks(context, ["net.port"])
    assert {f.id: f.status for f in report.findings}["net.port"] is Status.WARN
    with pytest.raises(ConfigError, match=r"host[.]swapp"):
        run_checks(context, ["host.swapp"])


# What the process engine is made with


def with_programs(compilers: tuple[str, ...], *pythons: Python) -> Facts:
    return recorded(HEALTHY).model_copy(update={"compilers": compilers, "pythons": pythons})


def test_a_python_that_the_distribution_lacks_has_other_ways() -> None:
    facts = with_programs((), Python(path="/usr/bin/python3.12", version="3.12.3"))
    found = ask("host.python", facts)
    assert found.status is Status.FAIL
    for way in ("--engine docker", "deadsnakes", "uv python install 3.11", "pyenv install 3.11"):
        assert way in found.remedy
    assert "\n" not in found.remedy


@pytest.mark.parametrize(
    ("compilers", "headers", "lacks", "packages"),
    [
        (("g++",), True, "gcc", "install gcc`"),
        (("gcc",), True, "g++", "install g++`"),
        (("gcc", "g++"), False, "Python.h of /usr/bin/python3.11", "install python3.11-dev`"),
        ((), False, "gcc and g++ and Python.h", "install gcc g++ python3.11-dev`"),
    ],
)
def test_what_compiles_kernels_must_be_there(
    compilers: tuple[str, ...], headers: bool, lacks: str, packages: str
) -> None:
    other = Python(path="/usr/bin/python3.12", version="3.12.3", headers=not headers)
    python = Python(path="/usr/bin/python3.11", version="3.11", headers=headers)
    facts = with_programs(compilers, other, python)
    found = ask("host.compiler", facts)
    assert found.status is Status.FAIL
    assert lacks in found.summary
    assert packages in found.remedy
    assert ask("host.compiler", facts, "cpu-canary").status is Status.SKIP
    docker = CheckContext(facts, profile("single96-resident"), engine="docker")
    assert apply(CHECKS["host.compiler"], docker).status is Status.PASS


def test_headers_that_cannot_be_told_are_no_failure() -> None:
    shim = Python(path="/home/user/.pyenv/shims/python3.11", version="3.11")
    for pythons in ((), (shim,)):
        found = ask("host.compiler", with_programs(("gcc", "g++"), *pythons))
        assert found.status is Status.PASS
        assert "cannot be told" in found.summary


def test_the_headers_looked_at_are_those_of_the_python_that_would_be_taken() -> None:
    ours = Python(path="/opt/python/bin/python", version="3.11.9", headers=True)
    other = Python(path="/usr/bin/python3.11", version="3.11", headers=False)
    assert ask("host.compiler", with_programs(("gcc", "g++"), other, ours)).status is Status.PASS
