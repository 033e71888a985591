"""`dsctl up --detach`: the same `dsctl up`, in a session of its own, followed from here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dsctl.errors import DsctlError, EngineError, ExitCode, InterruptedByUserError
from dsctl.model.event import Event
from dsctl.paths import Paths, make_writable
from dsctl.supervise.interrupts import uninterrupted
from dsctl.supervise.journal import Watcher
from dsctl.supervise.logtail import LogTail
from dsctl.supervise.prepare import Request

_POLL_S = 0.05


def follow_background(request: Request, paths: Paths, watcher: Watcher) -> Event:
    """Start `dsctl up` in the background and hand on its events until it ends; the last event.

    Closing the terminal does not end it; Ctrl-C here does, as it would in the foreground.

    Raises:
        DsctlError: what the background start reported, with its exit code.
    """
    directory = make_writable(paths.deployment, "state")
    output = directory / f"up-{os.getpid()}.jsonl"
    errors = directory / f"up-{os.getpid()}.err"
    try:
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "dsctl",
                    "up",
                    *arguments_of(request),
                    "--format",
                    "json",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        last = _follow(process, output, watcher)
        code = process.wait()
        if code == 0 and last is not None:
            return last
        raise _failure(code, last, errors)
    finally:
        for path in (output, errors):
            path.unlink(missing_ok=True)


def _follow(process: subprocess.Popen[bytes], output: Path, watcher: Watcher) -> Event | None:
    last = None
    tail = LogTail(output)
    try:
        while True:
            ended = process.poll() is not None
            for text in tail.drain() if ended else tail.poll():
                last = Event.model_validate_json(text)
                watcher(last)
            if ended:
                return last
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with uninterrupted():
            process.send_signal(signal.SIGINT)
            process.wait()
        raise InterruptedByUserError("interrupted; nothing was left running") from None
    finally:
        tail.close()


def arguments_of(request: Request) -> list[str]:
    """The options of `dsctl up` that ask for this."""
    arguments = ["--profile", request.profile]
    for key, value in request.overrides.items():
        arguments += ["--set", f"{key}={value}"]
    if request.engine is not None:
        arguments += ["--engine", request.engine]
    if request.timeout_s is not None:
        arguments += ["--timeout", str(request.timeout_s)]
    if request.metrics is not None:
        arguments += ["--metrics", request.metrics]
    for identifier in request.ignore:
        arguments += ["--ignore", identifier]
    return arguments


def _failure(code: int, last: Event | None, errors: Path) -> DsctlError:
    """The error that the background start ended with, as if it had happened here."""
    if last is not None and last.extra("exit_code") is not None:
        error = DsctlError(last.message, remedy=last.extra("remedy"))
    else:
        said = errors.read_text(errors="replace").strip().splitlines()
        lines = [text.removeprefix("dsctl: ") for text in said] or ["it said nothing"]
        remedy = lines[1].strip().removeprefix("what to do: ") if len(lines) > 1 else None
        error = EngineError(lines[0], remedy=remedy)
    error.exit_code = ExitCode(code) if code in set(ExitCode) else ExitCode.ENGINE_FAILED
    return error
