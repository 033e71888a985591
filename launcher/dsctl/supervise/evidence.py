"""What is captured when an engine has failed, before anything of it is taken down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsctl.engine.base import Engine
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError
from dsctl.files import write_atomically
from dsctl.model.base import Value
from dsctl.model.deployment import Deployment
from dsctl.model.diagnosis import Diagnosis
from dsctl.supervise.kernellog import kernel_lines, since_boot
from dsctl.supervise.logtail import log_parts

#: Version of the evidence files (and of the bundle made of them).
EVIDENCE_VERSION = 1
_KEEP_FILES = 5
_TAIL_BYTES = 1 << 20
_TAIL_LINES = 4000
_SAMPLES = 900
_KERNEL_SLACK_S = 2.0
_WRAPPER = re.compile(r"initialization failed|See root cause above|EngineDeadError")
_HARMLESS = re.compile(r"\b(?:WARNING|INFO|DEBUG) \d\d-\d\d ")
_EXCEPTION = re.compile(r"\b[A-Za-z_.]*(Error|Exception)\b: .+")


class Capture(Value):
    """Everything about one failure, `t` in Unix seconds. `what`: the failure in words.

    `log` and `kernel` are lines, `samples` the memory timeline (as in `samples.jsonl`),
    `container` what the container engine answers about it, `diagnosis` what was made of them all.
    """

    version: int = EVIDENCE_VERSION
    t: float
    what: str
    deployment: Deployment
    ended: str | None
    log: tuple[str, ...]
    kernel: tuple[str, ...]
    container: dict[str, Any] | None
    samples: tuple[dict[str, Any], ...]
    diagnosis: dict[str, Any]


def capture(
    engine: Engine, state: StateDirectory, deployment: Deployment, what: str, now: float
) -> tuple[Capture, Diagnosis]:
    """Read everything while it is still there. Never raises: poor evidence beats none."""
    samples = tail_samples(state)
    kernel = kernel_lines(
        since_boot(deployment.started) - _KERNEL_SLACK_S, pids_seen(deployment, samples)
    )
    log = engine.log_path(deployment)
    container = inspect(engine, deployment)
    diagnosis = diagnose_parts(log_parts(log), kernel, container)
    ended = engine.ended(deployment)
    captured = Capture(
        t=now,
        what=what,
        deployment=deployment,
        ended=str(ended) if ended else None,
        log=tail_lines(log),
        kernel=kernel,
        container=container,
        samples=samples,
        diagnosis=diagnosis.to_json(),
    )
    return captured, diagnosis


def keep(state: StateDirectory, captured: Capture) -> Path | None:
    """Write it down and let go of the oldest; None where there is no room."""
    path = state.evidence_directory / f"{captured.t:014.3f}.json"
    with suppress(DsctlError, OSError):
        state.evidence_directory.mkdir(exist_ok=True)
        for old in sorted(state.evidence_directory.glob("*.json"))[: 1 - _KEEP_FILES]:
            old.unlink(missing_ok=True)
        write_atomically(path, captured.model_dump_json() + "\n", mode=0o600)
        return path
    return None


def newest(state: StateDirectory) -> Capture | None:
    """The evidence of the last failure."""
    for path in sorted(state.evidence_directory.glob("*.json"), reverse=True):
        with suppress(OSError, ValueError):
            return Capture.model_validate_json(path.read_text())
    return None


def diagnose_parts(
    logs: Iterable[Path], kernel: Iterable[str], container: dict[str, Any] | None
) -> Diagnosis:
    """What the engine's log, the kernel's and the container's state say together."""
    from dsctl.diagnose import Matcher
    from dsctl.diagnose.reading import read_into

    matcher = Matcher()
    with suppress(DsctlError):
        read_into(matcher, [str(path) for path in logs])
    for text in kernel:
        matcher.feed(text, "kernel")
    if container is not None:
        for text in json.dumps([container], indent=4).splitlines():
            matcher.feed(text, "container")
    return matcher.result()


def tail_lines(log: Path, count: int = _TAIL_LINES) -> tuple[str, ...]:
    """The last lines of a log, from at most the last MiB."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = text.split("\n")
    lines = lines[1:] if size > _TAIL_BYTES else lines
    return tuple(line.rstrip("\r") for line in lines[-count:] if line)


def tail_samples(state: StateDirectory, count: int = _SAMPLES) -> tuple[dict[str, Any], ...]:
    """The newest samples that were written down, oldest first."""
    lines: list[str] = []
    for path in log_parts(state.samples_file):
        with suppress(OSError):
            lines += path.read_text(errors="replace").splitlines()
    found = []
    for line in lines[-count:]:
        with suppress(ValueError):  # the last line may be half written
            found.append(json.loads(line))
    return tuple(found)


def inspect(engine: Engine, deployment: Deployment) -> dict[str, Any] | None:
    """What the container engine says about the engine's container, where there is one."""
    ask = getattr(engine, "inspect", None)
    if ask is None:
        return None
    with suppress(Exception):
        answer = ask(deployment)
        return answer if isinstance(answer, dict) else None
    return None


def last_error(lines: Iterable[str]) -> str | None:
    """The last line that names an exception (`SomeError: what`) and does not only wrap another.

    A warning that mentions one is no last word.
    """
    for text in reversed(list(lines)):
        if _HARMLESS.search(text):
            continue
        match = _EXCEPTION.search(text)
        if match is not None and not _WRAPPER.search(text):
            return match.group(0)[:300]
    return None


def pids_seen(deployment: Deployment, samples: Iterable[dict[str, Any]]) -> set[int]:
    """Every process of the engine that was ever seen."""
    pids = {p.pid for p in (deployment.engine_process,) if p is not None}
    for sample in samples:
        pids |= {process["pid"] for process in sample.get("processes") or ()}
    return pids
