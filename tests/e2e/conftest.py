"""Real engines end to end: `dsctl` as a user runs it, with state directories of its own.

The engine's environment is the user's (made once, shared); state, caches and configuration are
fresh for each test, and whatever a test left running is an error that the fixture reports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker import DockerEngine, NoDockerError, docker_engine, ensure_base
from tests.support.engine import Script, write_profile
from tests.support.images import Images

ROOT = Path(__file__).resolve().parents[2]
# Whoever runs the tests in the background has SIGINT ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Longer than a start may take: a loaded machine is no failure.
PATIENCE_S = 420.0


@dataclass
class Dsctl:
    """Runs `dsctl` in surroundings of its own."""

    home: Path
    port: int
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            **self.extra,
        }

    def command(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).with_name("dsctl")), *arguments]

    def run(
        self, *arguments: str, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def up_arguments(self, *more: str) -> list[str]:
        """A start as a process unless `more` says otherwise: with images on this machine (another
        test may have built them) containers would be the default."""
        how = [] if "--engine" in more else ["--engine", "process"]
        return ["up", "--profile", "cpu-canary", "--set", f"port={self.port}", *how, *more]

    def up(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.up_arguments(*more))

    def start_up(self, *more: str) -> subprocess.Popen[str]:
        """`dsctl up --format json` in the background, its events on `stdout`."""
        return subprocess.Popen(
            self.command(*self.up_arguments("--format", "json", *more)),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--format", "json").stdout)
        return found


def events_until(process: subprocess.Popen[str], event: str) -> list[dict[str, Any]]:
    """Read events up to and with the first of that name."""
    seen: list[dict[str, Any]] = []
    assert process.stdout is not None
    for text in process.stdout:
        seen.append(json.loads(text))
        if seen[-1]["event"] == event:
            return seen
    raise AssertionError(f"no event {event!r}; saw {[e['event'] for e in seen]}")


def rest_of(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    """The events still to come and what was said on stderr, once the process has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    events = [json.loads(text) for text in process.stdout.read().splitlines()]
    said = process.stderr.read()
    process.wait(timeout=60)
    return events, said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def left_running(home: Path) -> list[str]:
    """Command lines of processes that belong to this home's deployment."""
    mark = f"XDG_STATE_HOME={home}/state".encode()
    log = str(home).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if log in command or mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(
                    f"{entry.name} {command.replace(chr(0).encode(), b' ').decode()[:120]}"
                )
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def docker() -> Iterator[DockerEngine]:
    """A Docker engine: the one that answers, or one of our own for this run."""
    try:
        with docker_engine() as engine, pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", engine.host)  # dsctl asks the same one
            yield engine
    except NoDockerError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def base_image(docker: DockerEngine) -> str:
    """A Debian base made by debootstrap."""
    try:
        return ensure_base(docker)
    except NoDockerError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def images(docker: DockerEngine, base_image: str) -> Iterator[Images]:
    """Builds our images, each once for the whole run, the way a user does; kept for the next run.

    Everything that runs dsctl in this session finds the same base, wheels and locks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSCTL_IMAGE_BASE", base_image)
        yield Images(docker, patch)


@pytest.fixture
def dsctl(tmp_path: Path) -> Iterator[Dsctl]:
    user = Dsctl(tmp_path, free_port())
    yield user
    status = user.status()
    user.run("down", "--volumes")
    if status["pid"]:  # belt and braces: nothing of a failed test may burn CPU in the next
        for _ in range(50):
            if not Path(f"/proc/{status['pid']}").exists():
                break
            time.sleep(0.1)
        else:
            os.kill(status["pid"], signal.SIGKILL)
    assert left_running(tmp_path) == []


#: How long a state that must come may take on a loaded machine.
STATUS_PATIENCE_S = 90.0
#: Bounds of the rules, made short: what takes minutes for a real model takes moments here.
QUICK = {"backoff_s": 0.3, "restarts": 2}


@dataclass
class Scripted(Dsctl):
    """`dsctl` with a profile that runs the scripted engine."""

    profile: Path = field(default_factory=Path)

    def plays(self, script: Script, **sections: Any) -> None:
        limits = {**QUICK, **sections.pop("limits", {})}
        sections["limits"] = {
            name: {"value": value, "source": "choice", "why": "a test"}
            for name, value in limits.items()
        }
        self.profile = write_profile(self.home, script, **sections)

    def up_arguments(self, *more: str) -> list[str]:
        chosen = ["--engine", "process", "--set", f"port={self.port}"]
        return ["up", "--profile", str(self.profile), *chosen, *more]

    @property
    def directory(self) -> Path:
        return self.home / "state" / "dsctl" / "deployment"

    def events(self) -> list[dict[str, Any]]:
        text = (self.directory / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def names(self) -> list[str]:
        return [event["event"] for event in self.events()]

    def evidence(self) -> dict[str, Any]:
        newest = max((self.directory / "evidence").glob("*.json"))
        found: dict[str, Any] = json.loads(newest.read_text())
        return found

    def until(self, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that is good."""
        deadline = time.monotonic() + STATUS_PATIENCE_S
        while True:
            status = self.status()
            if good(status):
                return status
            assert time.monotonic() < deadline, (status, self.names())
            time.sleep(0.2)


def failed_with(up: subprocess.CompletedProcess[str], code: int, words_: str = "") -> None:
    assert up.returncode == code, up.stderr
    assert words_ in up.stderr
    assert "Traceback" not in up.stderr


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    user = Scripted(tmp_path, free_port())
    user.plays(Script())
    yield user
    user.run("down", "--volumes")
    assert left_running(tmp_path) == []


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Dsctl]:
    user = Dsctl(tmp_path, free_port())
    yield user
    user.run("down", "--volumes")
    assert left_running(tmp_path) == []
