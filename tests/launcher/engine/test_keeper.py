"""The keeper: owns the log, tells how the engine ended, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dsctl.engine.base import EngineCommand
from dsctl.engine.identity import identify, is_alive, session_members, wait_gone
from dsctl.engine.keeper import RotatingLog
from dsctl.engine.process import ProcessEngine
from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError
from dsctl.model.deployment import Deployment, ProcessIdentity
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase


@pytest.fixture
def engine(tmp_path: Path) -> ProcessEngine:
    return ProcessEngine(StateDirectory(tmp_path))


def deployment() -> Deployment:
    return Deployment(
        profile="test",
        engine="process",
        endpoint=Endpoint(port=1),
        model="m",
        phase=Phase.STARTING,
        since=0.0,
        started=0.0,
    )


def python(code: str) -> EngineCommand:
    return EngineCommand(argv=(sys.executable, "-u", "-c", code), env={"PATH": os.environ["PATH"]})


def until(condition: object, timeout_s: float = 10.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_output_and_exit_code_are_kept(engine: ProcessEngine) -> None:
    started = engine.start(deployment(), python("import sys; print('hello'); sys.exit(7)"))
    until(lambda: engine.ended(started))
    ended = engine.ended(started)
    assert ended is not None
    assert (ended.code, ended.signal) == (7, None)
    assert engine.log_path(started).read_text() == "hello\n"


def test_the_signal_that_killed_it_is_kept(engine: ProcessEngine) -> None:
    started = engine.start(deployment(), python("import os; os.kill(os.getpid(), 9)"))
    until(lambda: engine.ended(started))
    ended = engine.ended(started)
    assert ended is not None
    assert ended.signal == signal.SIGKILL


def test_the_environment_is_only_what_was_given(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    started = engine.start(deployment(), python("import os; print(sorted(os.environ))"))
    until(lambda: engine.ended(started))
    assert "HF_TOKEN" not in engine.log_path(started).read_text()


def test_children_that_the_engine_leaves_behind_are_ended(engine: ProcessEngine) -> None:
    code = (
        "import subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(p.pid)"
    )
    started = engine.start(deployment(), python(code))
    until(lambda: engine.ended(started))
    orphan = int(engine.log_path(started).read_text())
    until(lambda: not Path(f"/proc/{orphan}").exists() or _is_zombie(orphan))


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_stop_is_graceful_first(engine: ProcessEngine) -> None:
    code = (
        "import signal, sys, time\n"
        "def bye(*_):\n    print('bye'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye); print('up')\n"
        "time.sleep(600)"
    )
    started = engine.start(deployment(), python(code))
    until(lambda: "up\n" in engine.log_path(started).read_text())
    engine.stop(started, grace_s=10.0)
    assert engine.log_path(started).read_text() == "up\nbye\n"
    ended = engine.ended(started)
    assert ended is not None
    assert ended.code == 0


def test_stop_is_firm_when_the_engine_does_not_listen(engine: ProcessEngine) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('up'); time.sleep(600)"
    )
    started = engine.start(deployment(), python(code))
    until(
        lambda: engine.log_path(started).exists() and "up\n" in engine.log_path(started).read_text()
    )
    first = started.engine_process
    assert first is not None
    assert len(session_members(first.pid, first.start_ticks)) == 2
    engine.stop(started, grace_s=0.2)
    assert session_members(first.pid, first.start_ticks) == []
    assert started.keeper_process is not None
    assert not is_alive(started.keeper_process)


def test_stop_works_without_the_keeper(engine: ProcessEngine) -> None:
    started = engine.start(deployment(), python("import time; print('up'); time.sleep(600)"))
    until(lambda: "up\n" in engine.log_path(started).read_text())
    assert started.keeper_process is not None
    os.kill(started.keeper_process.pid, signal.SIGKILL)
    assert wait_gone(started.keeper_process, 5)
    assert engine.is_alive(started), "the engine outlives its keeper"
    engine.stop(started, grace_s=5)
    assert not engine.is_alive(started)


def test_a_missing_program_is_an_engine_error(engine: ProcessEngine) -> None:
    with pytest.raises(EngineError):
        engine.start(deployment(), EngineCommand(argv=("/nonexistent/vllm",), env={}))
    assert "cannot be started" in engine.state.log_file.read_text()


def test_memory_counts_the_whole_session(engine: ProcessEngine) -> None:
    started = engine.start(deployment(), python("import time; print('up'); time.sleep(600)"))
    until(lambda: "up\n" in engine.log_path(started).read_text())
    memory = engine.memory(started)
    assert memory["processes"] == 1
    assert memory["rss_bytes"] > 1 << 20
    engine.stop(started, grace_s=5)
    assert engine.memory(started) == {}


def test_a_process_with_our_pid_but_another_start_is_not_ours() -> None:
    me = identify(os.getpid())
    assert is_alive(me)
    imposter = ProcessIdentity(pid=me.pid, start_ticks=me.start_ticks - 1, boot_id=me.boot_id)
    assert not is_alive(imposter)
    assert not is_alive(me.model_copy(update={"boot_id": "another boot"}))


def test_the_log_rotates_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    log = RotatingLog(path, max_bytes=100, keep=3)
    lines = [f"line {n:04d}\n".encode() for n in range(35)]
    for text in lines:
        log.write(text)
    kept = b"".join(
        p.read_bytes() for p in [*(tmp_path / f"engine.log.{n}" for n in (3, 2, 1)), path]
    )
    assert kept == b"".join(lines)
    assert all(p.stat().st_size <= 100 for p in tmp_path.iterdir())
