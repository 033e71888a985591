"""Runs an image in the trap and writes down what it does. Never privileged, and removed after."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from dsctl.compose.policy import FOREIGN_CACHE
from dsctl.vet.trap import Notes, close_trap, set_trap
from dsctl.vet.values import Attempt, Run, RunKind

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

#: Where the stand-in for the model lies in the container.
CHECKPOINT = "/dsctl-vet/checkpoint"
_TAIL = 40
_LAST_LINES = 12
_LINE = 2000
_PIDS = 1024
#: No GPU for a stranger, whatever its environment asks for; the rest is what `up` sets as well.
OFFLINE = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Trial:
    """What to run. `argv` None: entrypoint and command of the image. `whole`: `argv` replaces the
    entrypoint too. `env` None for a name takes the variable away. `config`: the model's
    config.json, placed at CHECKPOINT."""

    kind: RunKind
    watch_s: float
    argv: tuple[str, ...] | None = None
    whole: bool = True
    env: dict[str, str | None] = field(default_factory=dict)
    config: bytes | None = None


@dataclass(frozen=True)
class Bench:
    """Where images are tried: the engine, the trap's image, labels to find what was made."""

    client: docker.DockerClient
    trap_image: str
    labels: dict[str, str]
    memory_bytes: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def run_trial(bench: Bench, image_id: str, trial: Trial, tell: Callable[[float], None]) -> Run:
    """One run in a trap of its own; `tell` hears how many seconds it has been watched.

    Raises:
        DsctlError: the trap does not work, or Docker fails.
    """
    trap = set_trap(bench.client, bench.trap_image, bench.labels)
    container = _made(bench, image_id, trial, trap)
    failed = _started(container)
    began = bench.clock()
    while failed is None and (watched := bench.clock() - began) < trial.watch_s:
        tell(watched)
        container.reload()
        if container.status in ("exited", "dead"):
            break
        bench.sleep(0.2)
    watched = bench.clock() - began
    container.reload()
    state = container.attrs["State"]
    if state["Running"]:
        container.kill()
    output = failed or container.logs(tail=_TAIL).decode("utf-8", "replace")
    notes = close_trap(trap)
    container.remove(force=True, v=True)
    trap.remove(force=True, v=True)
    code = None if state["Running"] else int(state["ExitCode"])
    return Run(
        kind=trial.kind,
        argv=trial.argv or (),
        watched_s=round(watched, 1),
        exit_code=127 if failed else code,
        out_of_memory=bool(state.get("OOMKilled")),
        attempts=attempts(notes, unix_time(state["StartedAt"])),
        listeners=notes.listeners,
        families=notes.families,
        missing=notes.missing,
        lost=notes.lost,
        last_lines=last_lines(output),
    )


def _made(bench: Bench, image_id: str, trial: Trial, trap: Container) -> Container:
    env: dict[str, str | None] = {**OFFLINE, **trial.env}
    container = bench.client.containers.create(
        image_id,
        command=None if trial.argv is None or trial.whole else list(trial.argv),
        entrypoint=list(trial.argv) if trial.argv is not None and trial.whole else None,
        # A name without a value takes the image's own variable away.
        environment=[n if v is None else f"{n}={v}" for n, v in env.items()],
        labels=bench.labels,
        # the profile's runs find the caches where `up` has them
        tmpfs={FOREIGN_CACHE.target: FOREIGN_CACHE.options} if trial.env else None,
        network_mode=f"container:{trap.id}",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mem_limit=bench.memory_bytes,
        memswap_limit=bench.memory_bytes,
        pids_limit=_PIDS,
        oom_score_adj=500,
        log_config={"Type": "json-file", "Config": {"max-size": "16m", "max-file": "1"}},
    )
    if trial.config is not None:
        container.put_archive("/", stand_in(trial.config))
    return container


def _started(container: Container) -> str | None:
    """Start it; what Docker said where its program is not there or cannot be run."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as error:
        said = str(error.explanation or error)
        if any(word in said for word in ("executable file not found", "no such file", "exec")):
            return said
        raise
    return None


def stand_in(config: bytes) -> bytes:
    """A model directory with nothing but its config.json, as a tar for the root of a container."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        parts = CHECKPOINT.strip("/").split("/")
        for depth in range(len(parts)):
            folder = tarfile.TarInfo("/".join(parts[: depth + 1]))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        entry = tarfile.TarInfo("/".join([*parts, "config.json"]))
        entry.size, entry.mode = len(config), 0o444
        archive.addfile(entry, io.BytesIO(config))
    return buffer.getvalue()


def attempts(notes: Notes, started: float) -> tuple[Attempt, ...]:
    """The trap's tries with times after the start, in the order of time. Pure."""
    found = (
        Attempt(
            protocol=record["protocol"],
            address=record["address"],
            port=record["port"],
            name=record["name"],
            said=record["said"],
            count=record["count"],
            at_s=round(max(0.0, record["t"] - started), 2),
        )
        for record in notes.tries
    )
    return tuple(sorted(found, key=lambda a: a.at_s))


def last_lines(output: str) -> tuple[str, ...]:
    """The end of what it printed, without control characters."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    clean = ("".join(c for c in line if c.isprintable()) for line in lines[-_LAST_LINES:])
    return tuple(line[:_LINE] for line in clean)


def unix_time(text: str) -> float:
    """Docker's time stamp (RFC 3339 with nanoseconds) as seconds since 1970."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return seconds + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
