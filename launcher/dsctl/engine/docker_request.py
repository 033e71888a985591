"""A container's description as the Docker engine's request. Pure but for the filter file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.compose import policy
from dsctl.compose.spec import ContainerSpec, Mount
from dsctl.errors import ConfigError

if TYPE_CHECKING:
    from docker import APIClient


def create_arguments(api: APIClient, spec: ContainerSpec, name: str) -> dict[str, Any]:
    """Arguments of `create_container`, equal to what Compose makes of the printed file."""
    made: dict[str, Any] = {
        "image": spec.image,
        "name": name,
        "command": list(spec.command),
        "user": spec.user,
        "hostname": spec.hostname,
        "environment": dict(spec.env),
        "labels": dict(spec.labels),
        "host_config": api.create_host_config(**host_arguments(spec)),
        "stop_signal": None,
    }
    if spec.entrypoint:
        made["entrypoint"] = list(spec.entrypoint)
    if spec.network is not None:
        made["networking_config"] = api.create_networking_config(
            {spec.network: api.create_endpoint_config(aliases=[spec.role])}
        )
        made["ports"] = [port.container_port for port in spec.ports]
    return {key: value for key, value in made.items() if value is not None}


def host_arguments(spec: ContainerSpec) -> dict[str, Any]:
    """Arguments of the SDK's `create_host_config`."""
    from docker.types import DeviceRequest, LogConfig, Ulimit

    made: dict[str, Any] = {
        "network_mode": spec.network or "none",
        "read_only": True,
        "cap_drop": list(policy.DROPPED),
        "security_opt": ["no-new-privileges:true", f"seccomp={_filter(spec.seccomp)}"],
        "ipc_mode": "private",
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        "pids_limit": spec.pids,
        "oom_score_adj": spec.oom_score_adj,
        "ulimits": [Ulimit(name=u.name, soft=u.value, hard=u.value) for u in spec.ulimits],
        "tmpfs": {t.target: t.options for t in spec.tmpfs},
        "mounts": [_mount(mount) for mount in spec.mounts],
        "restart_policy": {"Name": "no"},
        "log_config": LogConfig(
            type="json-file", config={"max-size": policy.LOG_MAX, "max-file": policy.LOG_FILES}
        ),
    }
    if spec.shm_bytes is not None:
        made["shm_size"] = spec.shm_bytes
    if spec.ports:
        made["port_bindings"] = {
            p.container_port: (p.host_address, int(p.host_port) or None) for p in spec.ports
        }
    if spec.gpus:
        made["device_requests"] = [
            DeviceRequest(driver="nvidia", device_ids=list(spec.gpus), capabilities=[["gpu"]])
        ]
    return made


def _mount(mount: Mount) -> Any:
    from docker.types import Mount as DockerMount

    return DockerMount(
        mount.target,
        mount.source,
        type=mount.kind,
        read_only=mount.read_only,
        no_copy=mount.no_copy,
    )


def _filter(path: str) -> str:
    """The system call filter's content: the engine wants it inline."""
    try:
        return json.dumps(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: no system call filter: {error}",
            remedy="install dsctl again, or restore the file",
        ) from None
