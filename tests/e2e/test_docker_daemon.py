"""The docker engine against daemons of our own: cards through a stand-in hook, and daemons that go.

Both containers run a sleeping shell of a few megabytes; what is tried is how dsctl deals with
Docker, not what runs in the containers.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsctl.compose.deck import Places, deck_of
from dsctl.compose.spec import ContainerSpec, Deck
from dsctl.engine.base import EngineCommand
from dsctl.engine.docker import LABEL, DockerEngine, project_of
from dsctl.engine.docker_events import DockerEvents
from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.planning.catalog import load_profile
from tests.e2e.conftest import ROOT, free_port, left_running
from tests.support import docker as support
from tests.support.docker import DockerEngine as Daemon
from tests.support.docker import NoDockerError, own_daemon

pytestmark = pytest.mark.docker

TINY = "dsctl-test/tiny:1"
CARD = "GPU-5d1c8b9e-0000-4000-8000-000000000001"
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def tiny_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system with a shell and `sleep`, of this host's own files."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.tar"
    programs = [shutil.which(name) for name in ("sh", "sleep")]
    assert all(programs)
    with tarfile.open(path, "w", dereference=True) as tar:
        for program in filter(None, programs):
            tar.add(program, f"bin/{Path(program).name}")
            linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
            for word in linked.stdout.split():
                if word.startswith("/") and word.lstrip("/") not in tar.getnames():
                    tar.add(word, word.lstrip("/"))
    return path


@pytest.fixture
def daemon(tiny_tar: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon of our own with the tiny image; DOCKER_HOST names it."""
    from contextlib import ExitStack

    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a dockerd, and it must be installed")
    with ExitStack() as stack:

        def start(*options: str) -> Daemon:
            try:
                made = stack.enter_context(own_daemon(*options))
            except NoDockerError as reason:
                pytest.skip(str(reason))
            made.docker("import", str(tiny_tar), TINY)
            monkeypatch.setenv("DOCKER_HOST", made.host)
            return made

        yield start


def sleeping(directory: Path, gpus: tuple[str, ...] = ()) -> EngineCommand:
    """The deck of the canary, with sleepers in it (and a card, if asked for)."""
    for name in ("model", "keys"):
        (directory / name).mkdir(exist_ok=True)
    project = project_of(StateDirectory(directory))
    deck = deck_of(
        load_profile("cpu-canary"),
        Places(
            engine_image=TINY,
            gateway_image=TINY,
            model=str(directory / "model"),
            keys=str(directory / "keys"),
            hardening=str(ROOT / "hardening"),
            bind="127.0.0.1",
            port=str(free_port()),
            monitor_port="0",
            gpus=gpus,
            labels=((LABEL, project),),
            network=f"{project}-front",
            run_volume=f"{project}-run",
            cache_volume=f"{project}-cache",
        ),
    )
    deck = dataclasses.replace(deck, engine=asleep(deck.engine), gateway=asleep(deck.gateway))
    return EngineCommand(argv=deck.engine.command, env={}, deck=deck)


def asleep(spec: ContainerSpec) -> ContainerSpec:
    script = 'trap "exit 0" TERM; echo up; while :; do sleep 1; done'
    return dataclasses.replace(spec, entrypoint=("/bin/sh", "-c", script), command=())


def a_deployment(deck: Deck | None) -> Deployment:
    assert deck is not None
    return Deployment(
        profile="cpu-canary",
        engine="docker",
        endpoint=Endpoint(port=int(deck.gateway.ports[0].host_port)),
        model="m",
        phase=Phase.STARTING,
        since=0.0,
        started=0.0,
    )


def started(directory: Path) -> tuple[DockerEngine, Deployment]:
    engine = DockerEngine(StateDirectory(directory))
    command = sleeping(directory)
    return engine, engine.start(a_deployment(command.deck), command)


def left(daemon: Daemon) -> list[str]:
    """What of ours a daemon still has."""
    names = daemon.docker("ps", "-a", "--format", "{{.Names}}").split()
    names += daemon.docker("network", "ls", "--format", "{{.Name}}").split()
    names += daemon.docker("volume", "ls", "--format", "{{.Name}}").split()
    return sorted(name for name in names if name.startswith("dsctl-"))


def log_of(engine: DockerEngine, running: Deployment) -> str:
    """What has been copied so far."""
    path = engine.log_path(running)
    return path.read_text() if path.exists() else ""


def wait_until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_deployment_leaves_only_its_caches_and_those_go_when_asked(
    daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    ours = daemon()
    engine, running = started(tmp_path)
    assert engine.is_alive(running)
    assert running.engine_process is not None
    assert running.endpoint.monitor_port
    wait_until(lambda: "up" in log_of(engine, running), "the log is copied")
    assert engine.memory(running)["limit_bytes"] > 0

    again = DockerEngine(StateDirectory(tmp_path))  # another dsctl, with the record alone
    forgotten = running.model_copy(update={"engine_process": None, "gateway_process": None})
    assert again.is_alive(forgotten)
    assert again.recorded(forgotten).engine_process == running.engine_process

    restarted = again.start(running, EngineCommand(running.argv, running.env))
    assert restarted.container != running.container, "a supervisor has the record alone"
    assert not again.is_alive(running)
    assert again.is_alive(restarted)
    again.stop(restarted, grace_s=10)
    assert not again.is_alive(restarted)
    assert left(ours) == [f"{engine.project}-cache"] == engine.kept()
    assert engine.purge() == [f"{engine.project}-cache"]
    assert left(ours) == []
    again.stop(running, grace_s=10)  # nothing to do is done


def test_a_killed_container_is_seen_with_its_signal(
    daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    ours = daemon()
    engine, running = started(tmp_path)
    events = DockerEvents(engine.project)
    assert events() == []
    ours.docker("kill", "-s", "KILL", engine.name("engine"))
    wait_until(lambda: not engine.is_alive(running), "the end is seen")
    wait_until(lambda: engine.ended(running), "and how")
    ended = engine.ended(running)
    assert ended is not None
    assert ended.signal == signal.SIGKILL
    wait_until(lambda: "ExitCode=137" in log_of(engine, running), "the log ends with it")
    told = events()
    assert [(e.action, e.exit_code) for e in told] == [("kill", None), ("die", 137)]
    assert 0 <= time.monotonic() - told[-1].t < PATIENCE_S
    assert events() == [], "each is told once"
    engine.stop(running, grace_s=1)
    engine.purge()
    assert left(ours) == []


def stop(daemon: Daemon) -> None:
    """End our daemon, as an upgrade of its package does."""
    assert daemon.process is not None
    daemon.process.terminate()
    daemon.process.wait(timeout=PATIENCE_S)


def test_a_container_out_of_memory_is_named_as_such(
    daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    from dsctl.diagnose import diagnose

    ours = daemon()
    engine = DockerEngine(StateDirectory(tmp_path))
    command = sleeping(tmp_path)
    assert command.deck is not None
    hungry = dataclasses.replace(
        command.deck.engine,
        entrypoint=("/bin/sh", "-c", "sleep 2; x=aaaaaaaa; while :; do x=$x$x; done"),
        memory_bytes=32 << 20,
    )
    command = dataclasses.replace(command, deck=dataclasses.replace(command.deck, engine=hungry))
    events = DockerEvents(engine.project)
    running = engine.start(a_deployment(command.deck), command)
    wait_until(lambda: not engine.is_alive(running), "it ends")
    wait_until(lambda: engine.ended(running), "and is known to have ended")
    assert "out of memory" in str(engine.ended(running))
    wait_until(lambda: "OOMKilled=true" in log_of(engine, running), "the log ends with it")
    assert diagnose(log_of(engine, running).splitlines()).cause.id == "container.oom-killed"
    assert "oom" in [event.action for event in events()]
    engine.stop(running, grace_s=1)
    engine.purge()
    assert left(ours) == []


@pytest.mark.parametrize("survive", [True, False], ids=["live-restore", "plain"])
def test_a_daemon_that_goes_and_comes_back_is_no_riddle(
    daemon: Callable[..., Daemon], tmp_path: Path, survive: bool
) -> None:
    """With live-restore the containers go on; without, their end is told. Nothing is left."""
    options = ["--live-restore"] if survive else []
    ours = daemon(*options)
    engine, running = started(tmp_path)
    events = DockerEvents(engine.project)
    assert events() == []
    stop(ours)
    with pytest.raises(NotGoodError, match="does not answer"):
        engine.stop(running, grace_s=1)
    with pytest.raises(NotGoodError, match="does not answer"):
        events()
    home = Path(ours.host.removeprefix("unix://")).parent
    process = support._start_daemon(home, home / "log", [*options])
    try:
        assert support._wait(process, ours.host)
        if survive:
            assert engine.is_alive(running)
            assert engine.memory(running)
        else:
            wait_until(lambda: not engine.is_alive(running), "the end is seen")
        engine.stop(running, grace_s=5)
        last = "die" if survive else "destroy"  # the daemon that went took what it knew with it
        assert last in [event.action for event in events()], "it is asked again"
        assert not engine.is_alive(running)
        engine.purge()
        assert left(ours) == []
    finally:
        support.end_daemon(process)


def test_a_port_that_somebody_took_is_the_cause(
    daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    import socket

    ours = daemon()
    engine = DockerEngine(StateDirectory(tmp_path))
    command = sleeping(tmp_path)
    deployment = a_deployment(command.deck)
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", deployment.endpoint.port or 0))
        squatter.listen()
        with pytest.raises(EngineError) as caught:
            engine.start(deployment, command)
    assert caught.value.cause == "container.port-in-use"
    wait_until(lambda: left_running(tmp_path) == [], "the reader of the logs has ended")
    engine.stop(deployment, grace_s=1)
    engine.purge()
    assert left(ours) == []


def test_cards_without_a_runtime_are_diagnosed(
    daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    ours = daemon()
    engine = DockerEngine(StateDirectory(tmp_path))
    command = sleeping(tmp_path, gpus=(CARD,))
    deployment = a_deployment(command.deck)
    with pytest.raises(EngineError, match="could not select device driver") as caught:
        engine.start(deployment, command)
    assert caught.value.cause == "container.gpu-runtime-missing"
    assert "could not select device driver" in log_of(engine, deployment)
    engine.stop(deployment, grace_s=1)
    engine.purge()
    assert left(ours) == []


HOOK = """#!/bin/sh
# stands in for NVIDIA's: keeps what the runtime hands it
cat > {seen}
"""


def test_a_card_goes_to_the_container_through_the_runtime_hook(
    daemon: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request by UUID is one that a real daemon takes; the hook runs before the container."""
    seen = tmp_path / "seen.json"
    hook = tmp_path / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text(HOOK.format(seen=seen))
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hook.parent}:{os.environ['PATH']}")
    ours = daemon()
    engine = DockerEngine(StateDirectory(tmp_path))
    command = sleeping(tmp_path, gpus=(CARD,))
    deployment = a_deployment(command.deck)
    running = engine.start(deployment, command)
    try:
        assert engine.is_alive(running)
        assert seen.stat().st_size > 0, "the hook was run"
        environ = Path(f"/proc/{running.engine_process.pid}/environ").read_bytes()  # type: ignore[union-attr]
        assert f"NVIDIA_VISIBLE_DEVICES={CARD}".encode() in environ.split(b"\0")
    finally:
        engine.stop(running, grace_s=5)
        engine.purge()
    assert left(ours) == []
