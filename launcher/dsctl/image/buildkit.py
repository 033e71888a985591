"""Runs `docker build` with BuildKit: a context on its stdin, progress out, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from dsctl.errors import ConfigError, DsctlError, NotGoodError

#: `#7 [engine 3/4] RUN … "/mnt/assemble.py", "packages", …`, and what comes when all has run.
_STEP = re.compile(
    r'^#\d+ (?:\[[^\]]+\] RUN .*?(?P<program>unpack\.sh|assemble\.py", "(?P<part>\w+)")'
    r"|(?P<export>exporting \w+))"
)
_WORDS = {
    "unpack.sh": "unpacking Debian's packages",
    "system": "assembling the system",
    "packages": "installing the engine's wheels",
    "runtime": "building the runtime",
}


def buildkit_program() -> tuple[str, ...]:
    """The `docker` that can build with BuildKit: its plugin buildx, or built in (before 23.0).

    Raises:
        ConfigError: there is none.
    """
    for directory in dict.fromkeys([*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]):
        program = shutil.which("docker", path=directory)
        if program is None:
            continue
        if _says(program, "buildx", "version") is not None:
            return (program, "buildx", "build", "--load")
        version = re.search(r"version (\d+)\.", _says(program, "--version") or "")
        if version and int(version[1]) < 23:
            return (program, "build")
    raise ConfigError(
        "no `docker` on PATH can build with BuildKit",
        remedy="install Docker's buildx plugin (package docker-buildx-plugin or docker-buildx)",
    )


def run_build(
    arguments: Sequence[str],
    write_context: Callable[[IO[bytes]], None],
    report: Callable[[str], None],
    *,
    address: str,
) -> None:
    """Build; `report` gets a few words whenever another stage begins.

    Raises:
        DsctlError: it failed, with the reason and what to do.
    """
    env = {
        **os.environ,
        "DOCKER_HOST": address,
        "DOCKER_BUILDKIT": "1",
        "BUILDX_BUILDER": "default",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }
    command = [*buildkit_program(), "--progress", "plain", *arguments, "-"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    troubles: list[BaseException] = []
    feeder = threading.Thread(
        target=_feed, args=(process.stdin, write_context, troubles), daemon=True
    )
    feeder.start()
    try:
        last = _follow(process.stdout, report)
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    feeder.join(timeout=10)
    if code != 0:
        raise explain("\n".join(last), stopped=lambda: _has_stopped(command[0], env))
    if troubles:
        raise troubles[0]


def explain(output: str, stopped: Callable[[], bool] = lambda: False) -> DsctlError:
    """The error for a build that failed with these last words; `stopped` is asked whether the
    engine is gone where they do not say why a step failed (it ends the steps first)."""
    if "no space left on device" in output.lower():
        return ConfigError(
            "the disk of the Docker engine filled up while building; no image was made",
            remedy="free some space (`docker system df`; `docker builder prune` empties the build "
            "cache, `docker image prune` removes unnamed images), then build again",
        )
    if "dpkg-deb: not found" in output or "tar: not found" in output:
        return ConfigError(
            "the base image has no dpkg-deb or no tar",
            remedy="use a Debian-like base: `--base NAME@sha256:…`",
        )
    unexplained = "executor failed running" in output or "did not complete successfully" in output
    if any(sign in output for sign in _ENGINE_GONE) or (unexplained and stopped()):
        return NotGoodError(
            "the Docker engine stopped while building; no image was made",
            remedy="`sudo systemctl status docker` says why; when it runs, build again: finished "
            "steps are not repeated",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.I)]
    told = (errors or lines or ["it said nothing"])[-1]
    return DsctlError(
        f"docker build failed: {told[:300]}",
        remedy="its last words: " + " | ".join(lines[-6:])[-900:],
    )


_ENGINE_GONE = (
    "Cannot connect to the Docker daemon",
    "error during connect",
    "transport is closing",
    "closing transport",
    "code = Unavailable",
    "unexpected EOF",
    "connection reset by peer",
    "graceful_stop",
    "context canceled",
)


def _feed(
    pipe: IO[bytes], write_context: Callable[[IO[bytes]], None], troubles: list[BaseException]
) -> None:
    try:
        with contextlib.suppress(BrokenPipeError), pipe:  # docker has ended and says why
            write_context(pipe)
    except BaseException as trouble:
        troubles.append(trouble)


def _follow(output: IO[bytes], report: Callable[[str], None]) -> deque[str]:
    """Read to the end; the last lines are kept for the error."""
    last: deque[str] = deque(maxlen=60)
    for raw in output:
        text = raw.decode(errors="replace").rstrip()
        last.append(text)
        step = _STEP.match(text)
        if step is None:
            continue
        if step["export"]:
            report("writing the image")
        else:
            report(_WORDS[step["part"] or step["program"]])
    return last


def _has_stopped(program: str, env: Mapping[str, str], patience_s: float = 5.0) -> bool:
    """Whether the engine no longer answers, now or within a moment."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            asked = subprocess.run(
                [program, "version", "--format", "{{.Server.Version}}"],
                env=dict(env),
                capture_output=True,
                timeout=patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        if asked.returncode != 0:
            return True
        time.sleep(0.5)
    return False


def _says(program: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    # Not long: while `docker` hesitates, the build goes on. When it is gone, the engine cancels it.
    for number, patience_s in ((signal.SIGINT, 0.5), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=patience_s)
            return
