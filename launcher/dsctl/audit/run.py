"""The audit: looks at both containers, sends the probe into the engine's, asks at the gateway."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.audit.gate import tried_at
from dsctl.audit.inspected import inspected
from dsctl.audit.promise import AuditReport, Promise
from dsctl.audit.syscalls import FORBIDDEN
from dsctl.compose import policy
from dsctl.engine.docker_client import told
from dsctl.errors import NotGoodError
from dsctl.paths import shipped

if TYPE_CHECKING:
    from docker import DockerClient

_DIRECTORY = Path(__file__).with_name("inside")
#: The probe's modules, in the order of their imports.
_INSIDE = ("tries", "network", "files", "rights", "neighbours", "everything")
#: Makes them modules where there is no dsctl, then runs them.
_LOADER = """
import json, sys, types
asked = json.loads(sys.argv[1])
for name in ("dsctl", "dsctl.audit", "dsctl.audit.inside"):
    sys.modules[name] = types.ModuleType(name)
for name, text in asked["modules"].items():
    module = sys.modules["dsctl.audit.inside." + name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules["dsctl.audit.inside.everything"].try_everything(asked)
"""


def audit(
    client: DockerClient,
    engine: str,
    gateway: str | None,
    *,
    key: str | None = None,
    model: str | None = None,
    bind: str = "127.0.0.1",
) -> AuditReport:
    """Everything that is promised of two containers, tried.

    Args:
        engine: name or id of the engine's container; `gateway` of the other one, if there is one.
        key: opens the gateway; without one only strangers are tried.
        model: id that the gateway must list.
        bind: the address the API was told to be offered on.

    Raises:
        NotGoodError: a container is not there or does not run, or the probe cannot run in it.
    """
    promises: list[Promise] = []
    found = _inspect(client, engine)
    filters = [_filter("seccomp-engine.json"), _filter("seccomp-engine-cuda.json")]
    promises += inspected(found, "engine", filters)
    promises.append(_user_namespace(client))
    promises += _probe(client, engine, found)
    if gateway is not None:
        gate = _inspect(client, gateway)
        promises += inspected(gate, "gateway", [_filter("seccomp-gateway.json")], bind)
        address = _address(gate)
        if address is not None:
            promises += tried_at(address, key, model)
    return AuditReport(
        profile=(found["Config"].get("Labels") or {}).get("io.dsctl.profile"),
        engine_container=engine,
        gateway_container=gateway,
        promises=tuple(promises),
    )


def _inspect(client: DockerClient, name: str) -> dict[str, Any]:
    import docker.errors

    with told("a container was looked at"):
        try:
            found: dict[str, Any] = client.api.inspect_container(name)
        except docker.errors.NotFound:
            raise NotGoodError(
                f"there is no container {name}", remedy="`docker ps` lists those that run"
            ) from None
    if not found["State"]["Running"]:
        raise NotGoodError(f"container {name} does not run", remedy="start it, then audit it")
    return found


def _probe(client: DockerClient, engine: str, found: dict[str, Any]) -> list[Promise]:
    """Run the probe inside and read what it tells."""
    mounted = [m["Destination"] for m in found.get("Mounts") or []]
    mounted += found["HostConfig"].get("Tmpfs") or {}  # where somebody else's image has its caches
    requests = found["HostConfig"].get("DeviceRequests") or []
    with _listeners(client) as listeners:
        asked = {
            "listeners": listeners,
            "gpus": sum(len(r.get("DeviceIDs") or []) for r in requests),
            "writable": [d for d in (policy.RUN, policy.CACHE) if d in mounted],
            "read_only": [d for d in (policy.MODEL, policy.PACKS) if d in mounted],
            "calls": FORBIDDEN,
            "modules": {name: (_DIRECTORY / f"{name}.py").read_text() for name in _INSIDE},
        }
        command = ["python3", "-I", "-c", _LOADER, json.dumps(asked)]
        with told("the probe ran in the engine's container"):
            exec_id = client.api.exec_create(engine, command, stdout=True, stderr=True)["Id"]
            said, wrong = client.api.exec_start(exec_id, demux=True)
            code = client.api.exec_inspect(exec_id)["ExitCode"]
    try:
        results = json.loads(said or b"")
    except ValueError:
        words = (wrong or said or b"it said nothing").decode(errors="replace").strip()
        raise NotGoodError(
            f"the probe did not run in {engine} (exit code {code}): {words.splitlines()[-1][:200]}",
            remedy="the image needs a `python3` on its PATH; nothing was proven",
        ) from None
    return [Promise(container="engine", **result) for result in results]


@contextmanager
def _listeners(client: DockerClient) -> Iterator[list[tuple[str, int]]]:
    """A listener on every address of this host, for the probe to reach if it can.

    Without one, a refusal could not be told from a wall.
    """
    import psutil

    sockets = []
    try:
        for addresses in psutil.net_if_addrs().values():
            for address in addresses:
                if address.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host = address.address.partition("%")[0]
                if host.startswith(("127.", "fe80")) or host == "::1":
                    continue
                listener = socket.socket(address.family, socket.SOCK_STREAM)
                try:
                    listener.bind((host, 0))
                    listener.listen()
                except OSError:
                    listener.close()
                    continue
                sockets.append(listener)
        yield [(s.getsockname()[0], s.getsockname()[1]) for s in sockets]
    finally:
        for listener in sockets:
            listener.close()


def _user_namespace(client: DockerClient) -> Promise:
    with told("it was asked for its security options"):
        options = client.info().get("SecurityOptions") or []
    mapped = any("name=userns" in option or "rootless" in option for option in options)
    return Promise(
        id="conf.userns",
        container="engine",
        promise="root inside would be nobody outside (user namespace)",
        how="docker info",
        held=True if mapped else None,
        evidence="the Docker engine maps users"
        if mapped
        else "the Docker engine maps no users (`userns-remap` in daemon.json)",
    )


def _address(gate: dict[str, Any]) -> str | None:
    """Where this host reaches the API."""
    ports = (gate["NetworkSettings"].get("Ports") or {}).get(f"{policy.API_PORT}/tcp")
    if not ports:
        return None
    host, port = ports[0]["HostIp"], ports[0]["HostPort"]
    host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    tls = any(m["Destination"] == policy.TLS for m in gate.get("Mounts") or [])
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _filter(name: str) -> str:
    return shipped("hardening", name).read_text()
