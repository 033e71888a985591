"""`dsctl audit` on real containers: one of ours holds, and each weakened one is found out.

A sleeping Python stands in for the engine: what is tried is the container, not what runs in it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from dsctl.audit.promise import AuditReport
from dsctl.audit.run import audit
from dsctl.compose.deck import Places, deck_of
from dsctl.engine.docker_request import create_arguments
from dsctl.planning.catalog import load_profile
from tests.e2e.conftest import ROOT
from tests.support.docker import DockerEngine

pytestmark = pytest.mark.docker

NAME = "dsctl-test-audit"
SLEEP = ["python3", "-c", "import time; time.sleep(3600)"]
Weaken = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def client(docker: DockerEngine) -> Iterator[DockerClient]:
    made = DockerClient(base_url=docker.host)
    yield made
    made.close()


@pytest.fixture
def audited(
    client: DockerClient, base_image: str, tmp_path: Path
) -> Iterator[Callable[[Weaken], AuditReport]]:
    """Audits a container made as `up` makes it, after the request was weakened."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model").chmod(0o777)
    (tmp_path / "model" / "config.json").chmod(0o666)
    deck = deck_of(
        load_profile("cpu-canary"),
        Places(
            engine_image=base_image,
            gateway_image=base_image,
            model=str(tmp_path / "model"),
            keys=str(tmp_path),
            hardening=str(ROOT / "hardening"),
            bind="127.0.0.1",
            port="0",
            monitor_port="0",
            run_volume=f"{NAME}-run",
            cache_volume=f"{NAME}-cache",
        ),
    )
    spec = dataclasses.replace(deck.engine, command=())

    def run(weaken: Weaken) -> AuditReport:
        request = create_arguments(client.api, spec, NAME) | {"entrypoint": SLEEP}
        weaken(request)
        client.api.create_container(**request)
        client.api.start(NAME)
        return audit(client, NAME, None)

    yield run
    client.api.remove_container(NAME, force=True, v=True)
    for volume in (f"{NAME}-run", f"{NAME}-cache"):
        client.volumes.get(volume).remove()


def broken(report: AuditReport) -> set[str]:
    return {promise.id for promise in report.broken}


def test_a_container_of_ours_holds(audited: Callable[[Weaken], AuditReport]) -> None:
    report = audited(lambda request: None)
    assert report.held, [(p.id, p.evidence) for p in report.broken]
    assert len(report.promises) > 40
    tried = {promise.id for promise in report.promises if promise.held}
    assert {"net.ipv4", "net.ipv6", "net.name", "fs.root", "fs.model", "sys.ptrace"} <= tried
    assert {"sys.mount", "sys.module", "priv.setuid", "near.volumes", "near.gpus"} <= tried


def host(**changes: Any) -> Weaken:
    return lambda request: request["host_config"].update(changes)


def a_bridge(request: dict[str, Any]) -> None:
    request["host_config"]["NetworkMode"] = "bridge"


def as_root(request: dict[str, Any]) -> None:
    request["user"] = "0:0"
    request["host_config"].update({"CapDrop": [], "CapAdd": ["SYS_ADMIN", "SYS_PTRACE"]})
    request["host_config"]["SecurityOpt"] = ["seccomp=unconfined", "apparmor=unconfined"]


def a_writable_model(request: dict[str, Any]) -> None:
    for mount in request["host_config"]["Mounts"]:
        mount["ReadOnly"] = False


def the_docker_socket(request: dict[str, Any]) -> None:
    source = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    request["host_config"]["Mounts"].append(
        {
            "Type": "bind",
            "Source": source,
            "Target": "/var/run/docker.sock",
            "ReadOnly": True,
        }
    )


WEAKENED: dict[str, tuple[Weaken, set[str]]] = {
    "with a network": (a_bridge, {"conf.network", "net.interfaces", "net.ipv4"}),
    "with the host's network": (
        host(NetworkMode="host"),
        {"conf.network", "net.interfaces", "net.ipv4"},
    ),
    "with a writable root": (host(ReadonlyRootfs=False), {"conf.root", "fs.root"}),
    "with a writable model": (a_writable_model, {"conf.mounts", "fs.model"}),
    "with programs in scratch memory": (
        host(Tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"}),
        {"fs.noexec"},
    ),
    "without a filter": (
        host(SecurityOpt=["no-new-privileges:true", "seccomp=unconfined"]),
        {"conf.seccomp", "priv.locked.1", "sys.ptrace", "sys.kernel", "sys.namespaces"},
    ),
    "as root with capabilities": (
        as_root,
        {
            "conf.user",
            "conf.caps",
            "conf.no-new-privileges",
            "priv.caps.1",
            "priv.caps.self",
            "priv.setuid",
            "sys.mount",
            "sys.ptrace",
        },
    ),
    "with the processes of the host": (
        host(PidMode="host"),
        {"conf.namespaces", "near.processes"},
    ),
    "with the Docker socket": (the_docker_socket, {"conf.mounts", "near.volumes"}),
    "without limits": (
        host(Memory=0, MemorySwap=0, PidsLimit=0, Ulimits=[]),
        {"conf.memory", "conf.pids", "conf.core"},
    ),
}


@pytest.mark.parametrize("how", WEAKENED)
def test_a_weakened_container_is_found_out(
    how: str, audited: Callable[[Weaken], AuditReport]
) -> None:
    weaken, expected = WEAKENED[how]
    report = audited(weaken)
    assert expected <= broken(report), {p.id: p.evidence for p in report.promises}
