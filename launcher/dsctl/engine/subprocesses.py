"""Runs helper programs (pip, venv) so that nothing outlives us and their last words are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ProgramFailedError(Exception):
    """The program ended with `code`; `output` is the end of what it printed."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{command[0]} … ended with {code}: {output[-500:]}")
        self.code = code
        self.output = output


def run_watched(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
) -> str:
    """Run to the end, calling `tick` about every `tick_s` seconds; returns what it printed.

    It runs in a process group of its own, which is ended when we are interrupted.

    Raises:
        ProgramFailedError: it ended with a code other than 0.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command),
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=tick_s)
                    break
                except subprocess.TimeoutExpired:
                    if tick is not None:
                        tick()
        except BaseException:
            _end_group(process)
            raise
        output.seek(0, os.SEEK_END)
        output.seek(max(output.tell() - 65536, 0))
        text = output.read().decode(errors="replace")
    if code != 0:
        raise ProgramFailedError(command, code, text)
    return text


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=patience_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
