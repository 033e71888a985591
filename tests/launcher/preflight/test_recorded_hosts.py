"""What every recorded host is told, for every profile: the table a person could have written.

Each host lists what fails or warns whatever the profile is (for a GPU), and what single profiles
add. A finding that appears or goes away changes this table, on purpose or by mistake.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from dsctl.host.collect import collect
from dsctl.model.facts import Facts
from dsctl.model.finding import Finding, Report, Status
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.choose import choose
from dsctl.planning.machine import machine_from_facts
from dsctl.preflight.auto import preflight_auto
from dsctl.preflight.registry import CHECKS, CheckContext
from dsctl.preflight.run import run_checks, with_plan

HOSTS = Path(__file__).parents[2] / "hosts"

#: Every finding below is of the machine. What only tells how far a profile is supported, or what a
#: profile's own settings are, is tested with the profiles.
_OF_THE_PROFILE = {"profile.status", "profile.flags", "image.pins", "image.present", "image.vetted"}

CANARY = "cpu-canary"
RESIDENT = "single96-resident"
CACHE = "single96-basecache"
WSL = "single96-wsl"
DUAL = "dual96-native"
DRAFT = "dual96-dspark"
COMMUNITY = "dual96-community-image"

TABLE: dict[tuple[str, str], tuple[str, str]] = {
    # (host, profile): (fails, warns)
    ("server-two-socket", CANARY): ("", "host.numa"),
    ("server-two-socket", RESIDENT): ("", "host.numa"),
    ("server-two-socket", CACHE): ("", "host.numa pcie.link-speed"),
    ("server-two-socket", WSL): ("host.wsl", "host.numa"),
    ("server-two-socket", DUAL): ("gpu.count", "host.numa pcie.link-speed"),
    ("server-two-socket", COMMUNITY): ("gpu.count", "host.numa pcie.link-speed"),
    ("wsl2-96gb", CANARY): ("", ""),
    ("wsl2-96gb", WSL): ("", ""),
    ("wsl2-96gb", RESIDENT): ("host.wsl", "?host.memlock"),
    ("wsl2-96gb", CACHE): ("host.wsl", "host.memlock"),
    ("wsl2-96gb", DUAL): ("gpu.count host.wsl", "host.memlock"),
    ("workstation-dual-iommu", CANARY): ("", ""),
    ("workstation-dual-iommu", RESIDENT): ("", "docker.cgroup-driver"),
    ("workstation-dual-iommu", DRAFT): (
        "",
        "docker.cgroup-driver gpu.power-limit pcie.acs pcie.iommu pcie.p2p-verdict",
    ),
    ("workstation-dual-iommu", DUAL): (
        "",
        "docker.cgroup-driver gpu.power-limit pcie.acs pcie.iommu pcie.p2p-verdict",
    ),
    ("workstation-dual-healthy", CANARY): ("", ""),
    ("workstation-dual-healthy", RESIDENT): ("", ""),
    ("workstation-dual-healthy", CACHE): ("", ""),
    ("workstation-dual-healthy", DRAFT): ("", "gpu.power-limit"),
    ("workstation-dual-healthy", DUAL): ("", "gpu.power-limit"),
    ("display-card", CANARY): ("", ""),
    ("display-card", RESIDENT): ("", ""),
    ("display-card", CACHE): ("", ""),
    ("display-card", DUAL): (
        "gpu.compute-capability gpu.vram-free gpu.vram-total",
        "gpu.count gpu.power-limit pcie.resizable-bar",
    ),
    ("laptop-no-gpu", CANARY): ("", ""),
    ("laptop-no-gpu", COMMUNITY): (
        "docker.engine gpu.present host.memory-available",
        "host.memlock host.memory-total host.swap",
    ),
    ("rtx-5090", CANARY): ("", "docker.packaging"),
    ("rtx-5090", DUAL): (
        "gpu.count gpu.vram-total",
        "docker.cgroup-driver docker.gpu-runtime docker.packaging gpu.driver pcie.link-width",
    ),
    ("rented-vm", CANARY): ("net.port", ""),
    ("rented-vm", RESIDENT): (
        "disk.model-space gpu.driver net.port",
        "disk.pack-space docker.cgroup-driver host.unattended-upgrades",
    ),
    ("driver-upgraded", CANARY): ("", ""),
    ("driver-upgraded", RESIDENT): (
        "gpu.driver-mismatch gpu.present",
        "host.unattended-upgrades",
    ),
    ("driver-upgraded", DUAL): ("gpu.driver-mismatch gpu.present", "host.unattended-upgrades"),
    ("swapping", CANARY): ("host.memory-pressure", "host.swap"),
    ("swapping", RESIDENT): (
        "gpu.vram-free host.memory-pressure",
        "disk.pack-space gpu.driver host.swap pcie.link-width",
    ),
    ("swapping", DUAL): (
        "gpu.count gpu.vram-free host.memory-available host.memory-pressure host.swap",
        "gpu.driver pcie.link-speed pcie.link-width pcie.resizable-bar",
    ),
}

BEST = {
    "server-two-socket": RESIDENT,
    "wsl2-96gb": WSL,
    "workstation-dual-iommu": DRAFT,
    "workstation-dual-healthy": DRAFT,
    "display-card": RESIDENT,
    "laptop-no-gpu": CANARY,
    "rtx-5090": CANARY,
    "rented-vm": RESIDENT,
    "driver-upgraded": CANARY,
    "swapping": CANARY,
}

#: What would be taken once something is mended that needs no new hardware, and what that is.
IF_MENDED = {
    "driver-upgraded": (RESIDENT, "gpu.driver-mismatch", "reboot"),
    "swapping": (RESIDENT, "gpu.vram-free", "kill"),
}


@cache
def facts_of(host: str) -> Facts:
    return collect(HOSTS / host)


@cache
def report_of(host: str, profile: str) -> Report:
    context = CheckContext(facts_of(host), load_profile(profile), files=HOSTS / host)
    return run_checks(with_plan(context))


def ids(report: Report, status: Status) -> set[str]:
    return {f.id for f in report.findings if f.status is status and f.id not in _OF_THE_PROFILE}


@pytest.mark.parametrize(("host", "profile"), TABLE, ids=lambda x: x)
def test_the_findings_of_a_host_for_a_profile(host: str, profile: str) -> None:
    fails, warns = TABLE[host, profile]
    report = report_of(host, profile)
    ignored = {w.removeprefix("?") for w in warns.split() if w.startswith("?")}
    assert ids(report, Status.FAIL) == set(fails.split())
    assert ids(report, Status.WARN) - ignored == {w for w in warns.split() if w[0] != "?"}


@pytest.mark.parametrize("host", sorted(BEST))
@pytest.mark.parametrize("profile", profile_names())
def test_every_finding_says_what_to_do_and_every_skip_why(host: str, profile: str) -> None:
    report = report_of(host, profile)
    assert {f.id for f in report.findings} == set(CHECKS)
    for finding in report.findings:
        assert finding.summary
        if finding.status in (Status.FAIL, Status.WARN):
            assert len(finding.remedy) > 10
        if finding.status is Status.SKIP:
            assert finding.detail


def auto_report(host: str) -> Report:
    profiles = [load_profile(name) for name in profile_names()]
    return preflight_auto(profiles, CheckContext(facts_of(host), profiles[0], files=HOSTS / host))


def runnable(report: Report) -> Finding:
    (found,) = [f for f in report.findings if f.id == "profile.runnable"]
    return found


@pytest.mark.parametrize("host", sorted(BEST))
def test_without_a_profile_it_is_about_the_one_the_planner_takes(host: str) -> None:
    ranked = choose(machine_from_facts(facts_of(host)))
    report = auto_report(host)
    assert report.profile == ranked[0].profile.id == BEST[host]
    found = runnable(report)
    assert f"auto takes {BEST[host]} here" in found.summary
    for other in ranked[1:]:
        assert f"{other.profile.id}: {other.lost_because}" in found.detail


@pytest.mark.parametrize("host", sorted(BEST))
def test_what_can_be_mended_is_said_and_nothing_else(host: str) -> None:
    found = runnable(auto_report(host))
    if host not in IF_MENDED:
        assert found.status is Status.PASS
        return
    better, check, remedy = IF_MENDED[host]
    assert found.status is Status.WARN
    assert f"it would take {better}" in found.summary
    assert f"({check})" in found.summary
    assert remedy in found.remedy


def test_a_machine_too_small_for_anything_fails_with_the_reasons() -> None:
    facts = facts_of("laptop-no-gpu")
    assert facts.memory is not None
    tiny = facts.memory.model_copy(update={"total_bytes": 1 << 28, "available_bytes": 1 << 27})
    profiles = [load_profile(name) for name in profile_names()]
    base = CheckContext(facts.model_copy(update={"memory": tiny}), profiles[0])
    report = preflight_auto(profiles, base)
    assert report.verdict is Status.FAIL
    assert runnable(report).status is Status.FAIL
    assert "cpu-canary: host memory" in runnable(report).detail


def test_the_contracts_check_ids_all_exist() -> None:
    contract = (
        "host.memory-total host.memory-available host.swap host.memory-pressure host.numa "
        "host.memlock host.shm host.wsl host.kernel gpu.present gpu.count gpu.compute-capability "
        "gpu.vram-total gpu.vram-free gpu.driver gpu.open-kernel-module gpu.driver-mismatch "
        "gpu.mig gpu.power-limit gpu.temperature pcie.link-speed pcie.link-width "
        "pcie.resizable-bar pcie.iommu pcie.acs pcie.p2p docker.engine docker.gpu-runtime "
        "docker.cgroup-driver docker.packaging disk.model-space disk.pack-space "
        "disk.pack-filesystem model.checkpoint model.revision model.draft-weights "
        "model.speculative-config pack.present pack.identity image.present image.pins net.port "
        "profile.flags"
    )
    assert set(contract.split()) <= set(CHECKS)


@pytest.mark.parametrize("profile", [RESIDENT, DUAL, CANARY])
def test_a_host_that_tells_nothing_skips_everything_it_would_need(
    tmp_path: Path, profile: str
) -> None:
    context = CheckContext(collect(tmp_path), load_profile(profile), files=tmp_path)
    report = run_checks(with_plan(context))
    hardware = [
        f for f in report.findings if f.id.startswith(("host.", "gpu.", "pcie.", "docker."))
    ]
    assert hardware
    assert {f.status for f in hardware} == {Status.SKIP}


def test_no_remedy_asks_for_a_variable_that_the_engine_never_gets() -> None:
    for host in BEST:
        for finding in report_of(host, DUAL).findings:
            assert "CUDA_VISIBLE_DEVICES" not in finding.remedy
