"""The egress trap from outside: starts it, waits until it has proved itself, reads its notes.

The program is `hardening/trap`; it runs in a container of its own, from any image with Python 3,
copied in before the start. Whatever joins its network namespace meets nobody else.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsctl.errors import ConfigError, DsctlError
from dsctl.paths import shipped
from dsctl.vet.values import Listener

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

_PLACE = "trap"
_NAMESERVER = "10.255.255.1"
_PATIENCE_S = 120.0
_MEMORY = 256 << 20
#: Docker switches IPv6 off where it gave no address itself; the trap gives one.
_SYSCTLS = {"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.default.disable_ipv6": "0"}


@dataclass(frozen=True)
class Notes:
    """What the trap wrote. `tries` have Unix times in `t`."""

    tries: tuple[dict[str, Any], ...] = ()
    families: tuple[int, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    lost: int = 0
    ready: bool | None = None
    why: str = ""
    ended: bool = False


def read_notes(lines: Iterable[str]) -> Notes:
    """The trap's notes from its lines; a later record of a try replaces the earlier. Pure."""
    tries: dict[int, dict[str, Any]] = {}
    rest: dict[str, Any] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "id" in record:
            tries[record["id"]] = record
        else:
            rest |= record
    return Notes(
        tries=tuple(tries.values()),
        families=tuple(rest.get("families", ())),
        missing=dict(rest.get("missing", {})),
        listeners=tuple(Listener(**port) for port in rest.get("listening", ())),
        lost=int(rest.get("lost", 0)) + int(rest.get("dropped", 0)),
        ready=rest.get("ready"),
        why=str(rest.get("why", "")),
        ended=bool(rest.get("end", False)),
    )


def set_trap(client: docker.DockerClient, image: str, labels: dict[str, str]) -> Container:
    """A running trap, proved to catch look-ups and connections.

    The container is made with `labels`; whoever calls removes what bears them.

    Raises:
        ConfigError: the image has no Python.
        DsctlError: it does not catch its own tries, and would miss those of others.
    """
    from docker.errors import APIError

    trap = _made(client, image, labels, _SYSCTLS)
    try:
        trap.start()
    except APIError as error:
        if "executable file not found" in str(error):
            raise ConfigError(
                f"the trap cannot run in {image}: it has no python3",
                remedy="name another of your images with --trap-image",
            ) from None
        if "ipv6" not in str(error).lower():
            raise
        # A kernel without IPv6 has no such setting; then nothing can leave that way either.
        trap.remove(force=True, v=True)
        trap = _made(client, image, labels, {})
        trap.start()
    notes = _wait(trap)
    if not notes.ready:
        said = notes.why or _last_line(trap)
        raise DsctlError(
            f"the egress trap does not work here, so nothing can be said about the image: {said}",
            remedy="see `docker info`; the trap needs NET_ADMIN and NET_RAW in its own container",
        )
    return trap


def close_trap(trap: Container) -> Notes:
    """Stop the trap and read all it noted.

    Raises:
        DsctlError: it had ended before: what was tried after that is not known.
    """
    trap.stop(timeout=90)
    notes = read_notes(trap.logs(stderr=False).decode("utf-8", "replace").splitlines())
    if not notes.ended:
        raise DsctlError(
            f"the egress trap ended early: {_last_line(trap)}",
            remedy="vet the image again; nothing can be said from half a watch",
        )
    return notes


def program() -> bytes:
    """The trap's program as a tar, for the root of a container."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in sorted(shipped("hardening", "trap").glob("*.py")):
            data = file.read_bytes()
            entry = tarfile.TarInfo(f"{_PLACE}/{file.name}")
            entry.size, entry.mode = len(data), 0o444
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _made(
    client: docker.DockerClient, image: str, labels: dict[str, str], sysctls: dict[str, str]
) -> Container:
    trap = client.containers.create(
        image,
        entrypoint=["python3", "-I", "-B", f"/{_PLACE}"],
        command=[],
        user="0:0",
        labels=labels,
        network_mode="none",
        dns=[_NAMESERVER],
        sysctls=sysctls,
        cap_drop=["ALL"],
        cap_add=["NET_ADMIN", "NET_RAW"],
        security_opt=["no-new-privileges"],
        mem_limit=_MEMORY,
        pids_limit=32,
        log_config={"Type": "json-file", "Config": {"max-size": "32m", "max-file": "1"}},
        healthcheck={"test": ["NONE"]},
    )
    trap.put_archive("/", program())
    return trap


def _wait(trap: Container) -> Notes:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        notes = read_notes(trap.logs(stderr=False).decode("utf-8", "replace").splitlines())
        trap.reload()
        if notes.ready is not None or trap.status == "exited" or time.monotonic() > deadline:
            return notes
        time.sleep(0.1)


def _last_line(trap: Container) -> str:
    lines = trap.logs(tail=1).decode("utf-8", "replace").strip()
    return lines[:200] or "it said nothing"
