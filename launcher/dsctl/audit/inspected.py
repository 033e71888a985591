"""Promises that the Docker engine's own description of a container shows. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dsctl.audit.promise import Promise
from dsctl.compose import policy

_LOOPBACK = ("127.0.0.1", "::1")
_VOLUMES = {
    "engine": {
        policy.MODEL: False,
        policy.PACKS: False,
        policy.RUN: True,
        policy.CACHE: True,
    },
    "gateway": {policy.RUN: False, policy.KEYS: False, policy.TLS: False},
}


def inspected(
    found: dict[str, Any], role: str, filters: list[str], bind: str = _LOOPBACK[0]
) -> list[Promise]:
    """What `docker inspect` shows of a container, held against the policy.

    `filters` are the texts of the system call filters that it may have, `bind` the address that the
    API was told to be offered on.
    """
    host = found["HostConfig"]
    promises: list[Promise] = []

    def say(id_: str, promise: str, held: bool, evidence: str) -> None:
        promises.append(
            Promise(
                id=f"conf.{id_}",
                container=role,
                promise=promise,
                how="docker inspect",
                held=held,
                evidence=evidence,
            )
        )

    _say_isolation(say, found, host)
    _say_privileges(say, found, host, filters)
    _say_limits(say, host)
    _say_mounts(say, found, role)
    if role == "engine":
        _say_engine(say, found, host)
    else:
        _say_ports(say, host, bind)
    return promises


Say = Callable[[str, str, bool, str], None]


def _say_isolation(say: Say, found: dict[str, Any], host: dict[str, Any]) -> None:
    shared = {
        name: host.get(name)
        for name in ("PidMode", "IpcMode", "UTSMode", "UsernsMode")
        if str(host.get(name) or "").startswith(("host", "container:", "shareable"))
    }
    say("namespaces", "its namespaces are its own", not shared, str(shared or "none is shared"))
    borrowed = {k: host.get(k) for k in ("Devices", "DeviceCgroupRules", "VolumesFrom", "Links")}
    borrowed = {k: v for k, v in borrowed.items() if v}
    say("devices", "no device, volume or link of another", not borrowed, str(borrowed or "none"))
    say(
        "root",
        "its root file system is read-only",
        bool(host.get("ReadonlyRootfs")),
        f"ReadonlyRootfs={host.get('ReadonlyRootfs')}",
    )
    policy_name = (host.get("RestartPolicy") or {}).get("Name") or "no"
    say("restart", "it does not restart by itself", policy_name == "no", policy_name)


def _say_privileges(
    say: Say, found: dict[str, Any], host: dict[str, Any], filters: list[str]
) -> None:
    user = str(found["Config"].get("User") or "")
    numbered = user.replace(":", "").isdigit() and not user.startswith("0")
    say("user", "it runs as a numbered user that is not root", numbered, user or "root")
    say("privileged", "it is not privileged", not host.get("Privileged"), str(host["Privileged"]))
    caps = (host.get("CapDrop") or [], host.get("CapAdd") or [])
    dropped = [c.upper() for c in caps[0]] == ["ALL"] and not caps[1]
    say("caps", "all capabilities are dropped", dropped, f"drop {caps[0]}, add {caps[1]}")
    options = [str(o) for o in host.get("SecurityOpt") or []]
    locked = any(o.startswith("no-new-privileges") and not o.endswith("false") for o in options)
    say("no-new-privileges", "no program gains privileges", locked, _short(options))
    ours = _has_filter(options, filters)
    say("seccomp", "its system call filter is the one that ships", ours, _short(options))


def _has_filter(options: list[str], filters: list[str]) -> bool:
    for option in options:
        name, _, text = option.partition("=")
        if name != "seccomp":
            continue
        try:
            return json.loads(text) in [json.loads(f) for f in filters]
        except ValueError:
            return False
    return False


def _say_limits(say: Say, host: dict[str, Any]) -> None:
    say("memory", "its memory is limited", int(host.get("Memory") or 0) > 0, f"{host['Memory']}")
    pids = int(host.get("PidsLimit") or 0)
    say("pids", "its processes are limited", pids > 0, str(pids))
    score = int(host.get("OomScoreAdj") or 0)
    say("oom", "it goes before the host's own programs", score >= 0, f"OomScoreAdj={score}")
    core = [u for u in host.get("Ulimits") or [] if u["Name"] == "core"]
    say("core", "it leaves no core files", bool(core) and core[0]["Hard"] == 0, str(core))


def _say_mounts(say: Say, found: dict[str, Any], role: str) -> None:
    allowed = _VOLUMES[role]
    wrong = [
        f"{m.get('Source') or m.get('Name')} at {m['Destination']}{' writable' if m['RW'] else ''}"
        for m in found.get("Mounts") or []
        if m["Destination"] not in allowed or (m["RW"] and not allowed[m["Destination"]])
    ]
    say(
        "mounts",
        "nothing is mounted but what it needs, read-only where it only reads",
        not wrong,
        "; ".join(wrong) or " ".join(sorted(m["Destination"] for m in found.get("Mounts") or [])),
    )


def _say_engine(say: Say, found: dict[str, Any], host: dict[str, Any]) -> None:
    mode = str(host.get("NetworkMode"))
    say("network", "it has no network", mode == "none", f"NetworkMode={mode}")
    published = host.get("PortBindings") or {}
    say("ports", "it publishes no port", not published, str(published or "none"))
    env = dict(e.partition("=")[::2] for e in found["Config"].get("Env") or [])
    lacking = [k for k, v in policy.ENGINE_ENV.items() if env.get(k) != v]
    lacking += [] if "VLLM_PLUGINS" in env else ["VLLM_PLUGINS"]
    say(
        "offline",
        "nothing is fetched or reported, plugins are named",
        not lacking,
        f"not set: {' '.join(lacking)}" if lacking else "all switches are set",
    )
    requests = host.get("DeviceRequests") or []
    everything = [r for r in requests if r.get("Count") or not r.get("DeviceIDs")]
    named = [i for r in requests for i in r.get("DeviceIDs") or []]
    by_uuid = all(i.startswith(("GPU-", "MIG-", "nvidia.com/gpu=GPU-")) for i in named)
    say(
        "gpus",
        "it has the cards named by UUID, never all",
        not everything and by_uuid,
        str(requests) if everything else (" ".join(named) or "no card"),
    )


def _say_ports(say: Say, host: dict[str, Any], bind: str) -> None:
    bound = {
        port: sorted({b.get("HostIp") or "0.0.0.0" for b in places or []})
        for port, places in (host.get("PortBindings") or {}).items()
    }
    wrong = [
        port
        for port, addresses in bound.items()
        if set(addresses) - {*_LOOPBACK, *([bind] if port.startswith("8000") else [])}
    ]
    say("bind", f"it is offered on {bind} alone", not wrong, str(bound))
    mode = str(host.get("NetworkMode"))
    own = mode not in ("host", "default", "bridge", "none")
    say("network", "it has a network of its own", own, f"NetworkMode={mode}")


def _short(options: list[str]) -> str:
    return " ".join(o if len(o) < 60 else f"{o[:40]}…" for o in options) or "none"
