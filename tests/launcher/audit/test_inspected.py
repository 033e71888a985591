"""What a container's description shows: a good one holds, every weakening is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsctl.audit.inspected import inspected
from dsctl.audit.promise import AuditReport

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FILTERS = {"engine": "seccomp-engine.json", "gateway": "seccomp-gateway.json"}

Weaken = Callable[[dict[str, Any]], None]


def filter_of(role: str) -> str:
    return (ROOT / "hardening" / FILTERS[role]).read_text()


def container(role: str) -> dict[str, Any]:
    """`docker inspect` of a container as `dsctl up` makes it, recorded from Docker 20.10."""
    found: dict[str, Any] = json.loads((HERE / f"inspect-{role}.json").read_text())
    options = found["HostConfig"]["SecurityOpt"]
    options[1] = options[1].replace("THE-SHIPPED-FILTER", filter_of(role))
    return found


def broken(found: dict[str, Any], role: str, bind: str = "127.0.0.1") -> set[str]:
    promises = inspected(found, role, [filter_of(role)], bind)
    assert len(promises) > 14
    return {p.id.removeprefix("conf.") for p in promises if p.held is not True}


@pytest.mark.parametrize("role", ["engine", "gateway"])
def test_a_container_of_ours_keeps_every_promise(role: str) -> None:
    assert broken(container(role), role) == set()


def host(key: str, value: Any) -> Weaken:
    return lambda found: found["HostConfig"].update({key: value})


def config(key: str, value: Any) -> Weaken:
    return lambda found: found["Config"].update({key: value})


def mounted(source: str, target: str, *, writable: bool) -> Weaken:
    extra = {"Type": "bind", "Source": source, "Destination": target, "RW": writable}
    return lambda found: found["Mounts"].append(extra)


def model_writable(found: dict[str, Any]) -> None:
    next(m for m in found["Mounts"] if m["Destination"] == "/model")["RW"] = True


WEAKENED: dict[str, tuple[Weaken, str]] = {
    "a bridge": (host("NetworkMode", "bridge"), "network"),
    "the host's network": (host("NetworkMode", "host"), "network"),
    "a port": (host("PortBindings", {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]}), "ports"),
    "a writable root": (host("ReadonlyRootfs", False), "root"),
    "privileged": (host("Privileged", True), "privileged"),
    "a capability": (host("CapAdd", ["SYS_ADMIN"]), "caps"),
    "Docker's own capabilities": (host("CapDrop", None), "caps"),
    "one capability dropped": (host("CapDrop", ["NET_RAW"]), "caps"),
    "no filter": (host("SecurityOpt", ["no-new-privileges:true", "seccomp=unconfined"]), "seccomp"),
    "Docker's filter": (host("SecurityOpt", ["no-new-privileges:true"]), "seccomp"),
    "the host's processes": (host("PidMode", "host"), "namespaces"),
    "the host's shared memory": (host("IpcMode", "host"), "namespaces"),
    "the host's users": (host("UsernsMode", "host"), "namespaces"),
    "a device": (host("Devices", [{"PathOnHost": "/dev/kvm"}]), "devices"),
    "another's volumes": (host("VolumesFrom", ["db"]), "devices"),
    "no memory limit": (host("Memory", 0), "memory"),
    "no limit of processes": (host("PidsLimit", None), "pids"),
    "spared by the OOM killer": (host("OomScoreAdj", -900), "oom"),
    "core files": (host("Ulimits", []), "core"),
    "a restart policy": (host("RestartPolicy", {"Name": "always"}), "restart"),
    "all cards": (
        host("DeviceRequests", [{"Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]),
        "gpus",
    ),
    "a card by number": (host("DeviceRequests", [{"Count": 0, "DeviceIDs": ["0"]}]), "gpus"),
    "root": (config("User", ""), "user"),
    "root by number": (config("User", "0:0"), "user"),
    "a named user": (config("User", "somebody"), "user"),
    "online": (config("Env", ["VLLM_PLUGINS=", "HF_HUB_OFFLINE=0"]), "offline"),
    "the Docker socket": (
        mounted("/var/run/docker.sock", "/var/run/docker.sock", writable=True),
        "mounts",
    ),
    "a directory of the host": (mounted("/etc", "/host/etc", writable=False), "mounts"),
    "a writable model": (model_writable, "mounts"),
}


@pytest.mark.parametrize("what", WEAKENED)
def test_each_weakening_of_the_engine_is_named(what: str) -> None:
    weaken, promise = WEAKENED[what]
    found = container("engine")
    weaken(found)
    assert promise in broken(found, "engine")


def test_programs_that_may_gain_privileges_are_named() -> None:
    found = container("engine")
    del found["HostConfig"]["SecurityOpt"][0]
    assert broken(found, "engine") == {"no-new-privileges"}


def test_a_changed_filter_is_not_the_one_that_ships() -> None:
    found = container("engine")
    weaker = json.loads(filter_of("engine"))
    weaker["syscalls"].append({"names": ["ptrace"], "action": "SCMP_ACT_ALLOW"})
    found["HostConfig"]["SecurityOpt"][1] = f"seccomp={json.dumps(weaker)}"
    assert broken(found, "engine") == {"seccomp"}


@pytest.mark.parametrize(
    ("address", "bind", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", set()),
        ("0.0.0.0", "127.0.0.1", {"bind"}),
        ("", "127.0.0.1", {"bind"}),
        ("10.0.0.5", "127.0.0.1", {"bind"}),
        ("10.0.0.5", "10.0.0.5", set()),
        ("0.0.0.0", "0.0.0.0", set()),
    ],
)
def test_the_gateway_is_where_it_was_told_to_be(
    address: str, bind: str, expected: set[str]
) -> None:
    found = container("gateway")
    found["HostConfig"]["PortBindings"]["8000/tcp"] = [{"HostIp": address, "HostPort": "8000"}]
    assert broken(found, "gateway", bind) == expected


def test_metrics_are_for_this_machine_whatever_the_api_is_for() -> None:
    found = container("gateway")
    found["HostConfig"]["PortBindings"]["8001/tcp"] = [{"HostIp": "0.0.0.0", "HostPort": "1"}]
    assert broken(found, "gateway", "0.0.0.0") == {"bind"}


def test_a_report_holds_when_nothing_is_broken_and_says_what_could_not_be_tried() -> None:
    promises = inspected(container("engine"), "engine", [filter_of("engine")])
    untried = promises[0].model_copy(update={"held": None})
    report = AuditReport(
        profile="p", engine_container="e", gateway_container=None, promises=(*promises, untried)
    )
    assert report.held
    bad = promises[0].model_copy(update={"held": False})
    worse = report.model_copy(update={"promises": (*report.promises, bad)})
    assert not worse.held
    assert worse.broken == (bad,)
