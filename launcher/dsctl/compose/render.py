"""A deck as Compose: the document (plain data), and the text with a reason above each line."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from dsctl.compose import policy, why
from dsctl.compose.spec import ContainerSpec, Deck, Mount

_WIDTH = 100
_VARIABLE = re.compile(r"\$\{([A-Z_0-9]+)")


def document(deck: Deck) -> dict[str, Any]:
    """The Compose document, keys in the order of the text."""
    return {
        "services": {
            "engine": _service(deck.engine),
            "gateway": {**_service(deck.gateway), "depends_on": ["engine"]},
        },
        "networks": {deck.network: {"driver_opts": dict(policy.NETWORK_OPTIONS)}},
        "volumes": {
            name: {"driver": "local", "driver_opts": dict(options)} if options else {}
            for name, options in deck.volumes.items()
        },
    }


def render(deck: Deck) -> str:
    """The Compose file: the document with its reasons."""
    made = document(deck)
    lines = ["services:"]
    engine = why.ENGINE if deck.cache_volume is not None else why.ENGINE | why.FOREIGN_ENGINE
    for role, reasons in (("engine", engine), ("gateway", why.GATEWAY)):
        lines += [f"  {role}:", *_commented(made["services"][role], reasons, 4), ""]
    lines += ["networks:", *_commented(made["networks"], {deck.network: why.NETWORK}, 2), ""]
    reasons = {deck.run_volume: why.FOREIGN_RUN_VOLUME if deck.run_options else why.RUN_VOLUME}
    if deck.cache_volume is not None:
        reasons[deck.cache_volume] = why.CACHE_VOLUME
    lines += ["volumes:", *_commented(made["volumes"], reasons, 2)]
    body = "\n".join(lines) + "\n"
    return _header(deck.profile, body) + body


def _header(profile: str, body: str) -> str:
    used = set(_VARIABLE.findall(body))
    named = [f"#   {name:<14} {text}" for name, text in why.VARIABLES.items() if name in used]
    return why.HEADER.format(profile=profile, variables="\n".join(named or ["#   (none)"])) + "\n"


def _service(spec: ContainerSpec) -> dict[str, Any]:
    service: dict[str, Any] = {"image": spec.image}
    if spec.entrypoint:
        service["entrypoint"] = [_escape(part) for part in spec.entrypoint]
    service["command"] = [_escape(part) for part in spec.command]
    if spec.env:
        service["environment"] = {name: _escape(value) for name, value in spec.env.items()}
    if spec.network is None:
        service["network_mode"] = "none"
    else:
        service["networks"] = [spec.network]
        service["ports"] = [
            f"{p.host_address}:{p.host_port}:{p.container_port}" for p in spec.ports
        ]
    service |= {
        "hostname": spec.hostname,
        "user": spec.user,
        "read_only": True,
        "cap_drop": list(policy.DROPPED),
        "security_opt": ["no-new-privileges:true", f"seccomp:{spec.seccomp}"],
        "ipc": "private",
    }
    if spec.shm_bytes is not None:
        service["shm_size"] = spec.shm_bytes
    service |= {
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        "pids_limit": spec.pids,
        "oom_score_adj": spec.oom_score_adj,
        "ulimits": {limit.name: limit.value for limit in spec.ulimits},
        "tmpfs": [f"{t.target}:{t.options}" for t in spec.tmpfs],
        "volumes": [_mount(mount) for mount in spec.mounts],
    }
    if spec.gpus:
        request = {"driver": "nvidia", "device_ids": list(spec.gpus), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [request]}}}
    return service | {
        "stop_grace_period": f"{spec.stop_grace_s}s",
        "restart": "no",
        "logging": {
            "driver": "json-file",
            "options": {"max-size": policy.LOG_MAX, "max-file": policy.LOG_FILES},
        },
        "labels": dict(spec.labels),
    }


def _mount(mount: Mount) -> dict[str, Any]:
    made: dict[str, Any] = {"type": mount.kind, "source": mount.source, "target": mount.target}
    made |= {"read_only": True} if mount.read_only else {}
    return made | ({"volume": {"nocopy": True}} if mount.no_copy else {})


def _escape(text: str) -> str:
    """Compose would take `$` for a variable."""
    return text.replace("$", "$$")


def _commented(mapping: dict[str, Any], reasons: dict[str, str], indent: int) -> list[str]:
    """Each key as YAML with its reason above it."""
    import yaml

    lines = []
    for key, value in mapping.items():
        margin = " " * indent
        if reasons.get(key):
            lines += textwrap.wrap(
                reasons[key],
                _WIDTH,
                initial_indent=f"{margin}# ",
                subsequent_indent=f"{margin}# ",
            )
        text = yaml.safe_dump({key: value}, sort_keys=False, width=10_000, allow_unicode=True)
        lines += [f"{margin}{line}" for line in text.splitlines()]
    return lines
