"""Runs the runtime's pack program in the engine's environment and passes on what it says.

The program (`python -m dsruntime.pack`) prints one JSON report on stdout, and on stderr one JSON
object a line: progress, or the error. That is all the launcher knows of packs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsctl.background import Background
from dsctl.engine.environment import ensure_environment
from dsctl.engine.lockfile import read_lock
from dsctl.engine.runtime import ensure_runtime
from dsctl.errors import ConfigError, DsctlError, InterruptedByUserError, NotGoodError
from dsctl.paths import Paths
from dsctl.progress import Progress, Reporter

_GOOD, _NOT_GOOD = 0, 1
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class PackReport:
    """What the program reported; `good` is False when the pack asked about is not."""

    good: bool
    body: dict[str, Any]


def pack_program(paths: Paths, report: Reporter, *, lock: str = "cpu") -> tuple[list[str], str]:
    """The program's argv and its PYTHONPATH; makes environment and runtime if need be."""
    environment = ensure_environment(read_lock(lock), paths, report)
    runtime = ensure_runtime(environment, paths)
    return [str(environment.python), "-m", "dsruntime.pack"], str(runtime)


def run_pack(
    program: Sequence[str],
    runtime: str,
    args: Sequence[str],
    report: Reporter,
    background: Background,
) -> PackReport:
    """Run one pack command to its end; it pauses while an engine needs the memory more.

    Raises:
        ConfigError, NotGoodError: what the program said, with its remedy.
        InterruptedByUserError: interrupted; the program was let wind down, and can go on later.
        DsctlError: it ended without a report.
    """
    env = os.environ | {"PYTHONPATH": runtime}
    process = subprocess.Popen(
        [*program, *args, "--format", "json", "--progress", "json"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    error: dict[str, Any] | None = None
    other: list[str] = []
    try:
        with background.giving_way(process, report):
            for text in process.stderr:
                message = _message(text)
                if "progress" in message:
                    report(Progress(**message["progress"]))
                elif "error" in message:
                    error = message["error"]
                else:
                    other = [*other[-20:], text.strip()]
            output = process.stdout.read()
            code = process.wait()
    except BaseException as reason:
        _wind_down(process)
        if isinstance(reason, KeyboardInterrupt):
            raise InterruptedByUserError(
                "interrupted", remedy="run it again; a build goes on where it stopped"
            ) from None
        raise
    if error is not None:
        kind = ConfigError if code != _NOT_GOOD else NotGoodError
        raise kind(str(error["message"]), remedy=str(error["remedy"]))
    try:
        body = json.loads(output)
    except ValueError:
        last = next((text for text in reversed(other) if text), f"exit code {code}")
        raise DsctlError(
            f"the pack program ended without a report: {last}",
            remedy="see `dsctl env build`; if it persists, report it",
        ) from None
    return PackReport(code == _GOOD, body)


def _message(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _wind_down(process: subprocess.Popen[str]) -> None:
    """SIGTERM lets it sync and journal what is done; SIGKILL loses no more than that."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=_PATIENCE_S)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
