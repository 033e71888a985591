"""What breaks, and what the supervisor makes of it: cause, action, exit code, nothing left over.

The engine is the scripted one of `tests/support/engine` behind the real `dsctl`. Each test ends
with the fixture's look for processes that are left running.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Scripted, events_until, failed_with, left_running, rest_of
from tests.support.endpoint import Endpoint, Reply, words
from tests.support.engine import PHASES, Script

pytestmark = pytest.mark.engine


# ---- a start that fails ----------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_that_exits_ends_the_start_with_its_own_words(
    scripted: Scripted, phase: str
) -> None:
    """Cause unknown: nothing known fits; action: stop, for it would fail the same; exit code 3."""
    scripted.plays(Script(fault="exit", at=phase, say=("ValueError: the dog ate it",)))
    up = scripted.up()
    failed_with(up, 3, "ValueError: the dog ate it")
    status = scripted.status()
    assert (status["phase"], status["last_cause"], status["ready"]) == ("failed", "unknown", False)
    assert scripted.names().count("start") == 1
    evidence = scripted.evidence()
    assert "ValueError: the dog ate it" in evidence["log"]
    assert evidence["ended"] == "exit code 1"
    assert left_running(scripted.home) == []


@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_that_hangs_is_taken_down_at_the_deadline(scripted: Scripted, phase: str) -> None:
    """No cause is claimed; exit code 4. (The API of a hung start that is up still answers.)"""
    fault = Script(fault="hang", at=phase) if phase != "serving" else Script(dies_on="Who are you")
    scripted.plays(fault)
    up = scripted.up("--timeout", "3")
    failed_with(up, 4, "not ready after")
    assert scripted.status()["phase"] == "failed"
    assert scripted.evidence()["log"]
    assert left_running(scripted.home) == []


def test_a_known_cause_is_named_from_the_log(scripted: Scripted) -> None:
    """A CUDA error of the driver: cause from the log, stop, exit code 3."""
    said = (
        "(Worker pid=1) ERROR RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: "
        "system has unsupported display driver / cuda driver combination",
    )
    scripted.plays(Script(fault="exit", at="starting", say=said))
    failed_with(scripted.up(), 3)
    assert scripted.status()["last_cause"] == "driver.compat-library-shadowing"


def test_a_change_that_the_profile_allows_is_tried_once_and_named(scripted: Scripted) -> None:
    """memory.kv-too-small: action retry-changed, max_model_len 2048; then ready, exit code 0."""
    said = (
        "(EngineCore pid=1) ValueError: To serve at least one request with the models's max seq "
        "len (4096), (0.35 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (0.2 GiB). Based on the available memory, the estimated maximum model length is "
        "2100. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.",
    )
    retry = [{"causes": ["memory.kv-too-small"], "knob": "max_model_len", "values": [2048]}]
    retry[0]["why"] = "a shorter window still answers"
    counter = str(scripted.home / "starts")
    scripted.plays(
        Script(fault="exit", at="allocating", say=said, first=1, counter=counter), retry=retry
    )
    up = scripted.up()
    assert up.returncode == 0, up.stderr
    assert "max_model_len" in up.stderr
    status = scripted.status()
    assert status["changes"] == {"max_model_len": 2048}
    command = Path(f"/proc/{status['pid']}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--max-model-len") + 1] == b"2048"
    assert scripted.names().count("start") == 2


def test_a_change_that_does_not_help_is_not_tried_again(scripted: Scripted) -> None:
    """Two starts at most: as it is, then changed; exit code 3 with the cause."""
    said = (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
    )
    retry = [
        {
            "causes": ["memory.kv-too-small"],
            "knob": "max_model_len",
            "values": [2048],
            "why": "a shorter window still answers",
        }
    ]
    scripted.plays(Script(fault="exit", at="allocating", say=said), retry=retry)
    failed_with(scripted.up(), 3)
    assert scripted.names().count("start") == 2
    assert scripted.status()["last_cause"] == "memory.kv-too-small"


def test_an_engine_killed_from_outside_is_started_once_more_and_no_more(scripted: Scripted) -> None:
    """engine.worker-died is transient: retry once as it is; the second time it is the end."""
    scripted.plays(Script(fault="kill", at="loading"))
    failed_with(scripted.up(), 3, "killed by signal 9")
    assert scripted.names().count("start") == 2
    assert scripted.status()["last_cause"] == "engine.worker-died"


def test_no_log_at_all_does_not_hide_a_good_engine(scripted: Scripted) -> None:
    scripted.plays(Script(fault="silent"))
    up = scripted.up()
    assert up.returncode == 0, up.stderr
    assert scripted.status()["ready"] is True


def test_a_flood_of_log_neither_hides_a_good_engine_nor_fills_the_disk(scripted: Scripted) -> None:
    """100 MB/s from the first phase on: ready all the same; the log stays below its bound."""
    scripted.plays(Script(fault="flood", at="starting"))
    up = scripted.up("--timeout", "80")
    assert up.returncode == 0, up.stderr
    size = sum(path.stat().st_size for path in scripted.directory.glob("engine.log*"))
    assert size <= 5 * (64 << 20)
    down = scripted.run("down")
    assert down.returncode == 0, down.stderr


# ---- wrong answers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "cause"), [("garbage", "output.garbage"), ("think-leak", "output.think-tag-leak")]
)
def test_wrong_answers_are_never_called_ready(scripted: Scripted, answers: str, cause: str) -> None:
    """Action: stop, for it would answer the same; exit code 3."""
    scripted.plays(Script(answers=answers))
    failed_with(scripted.up(), 3)
    status = scripted.status()
    assert (status["phase"], status["last_cause"]) == ("failed", cause)
    assert "ready" not in scripted.names()
    assert left_running(scripted.home) == []


def test_a_foreign_server_that_takes_the_port_meanwhile_is_not_ours(scripted: Scripted) -> None:
    """It answers, healthily, with another model: container.port-in-use, exit code 3."""
    scripted.plays(Script(pace_s=0.3))
    process = scripted.start_up()
    events_until(process, "start")
    with Endpoint(lambda body: Reply(words("hi")), models=("foreign",), port=scripted.port):
        events, said = rest_of(process)
    assert process.returncode == 3, said
    assert events[-1]["cause"] == "container.port-in-use"
    assert left_running(scripted.home) == []


# ---- an engine that serves ---------------------------------------------------------------------


def test_an_engine_killed_while_it_serves_is_started_again(scripted: Scripted) -> None:
    """engine.worker-died: evidence first, then restart; status counts it, and stays ready."""
    assert scripted.up().returncode == 0
    first = scripted.status()
    os.kill(first["pid"], signal.SIGKILL)
    again = scripted.until(lambda s: s["ready"] and s["pid"] != first["pid"])
    assert again["restarts"] == 1
    assert scripted.evidence()["ended"] == "killed by signal 9"
    names = scripted.names()
    assert names.index("died") < names.index("retry")


def test_a_crash_loop_ends_in_failed_with_the_reason(scripted: Scripted) -> None:
    """Two restarts within an hour are allowed here; the third death is the end."""
    assert scripted.up().returncode == 0
    for restarts in range(3):
        status = scripted.until(lambda s, n=restarts: s["ready"] and s["restarts"] == n)
        os.kill(status["pid"], signal.SIGKILL)
    status = scripted.until(lambda s: s["supervisor"] is None)
    assert status["phase"] == "failed"
    assert "crash loop" in status["reason"]
    assert scripted.run("status").returncode == 1
    assert left_running(scripted.home) == []


def test_an_engine_that_dies_again_gets_the_change_that_the_profile_allows(
    scripted: Scripted,
) -> None:
    """The first time it is restarted as it was, the second time with the named change."""
    retry = [
        {
            "causes": ["engine.worker-died"],
            "knob": "max_model_len",
            "values": [2048],
            "why": "a shorter window still answers",
        }
    ]
    scripted.plays(Script(), retry=retry)
    assert scripted.up().returncode == 0
    for restarts in range(2):
        status = scripted.until(lambda s, n=restarts: s["ready"] and s["restarts"] == n)
        assert status["changes"] == {}
        os.kill(status["pid"], signal.SIGKILL)
    status = scripted.until(lambda s: s["ready"] and s["restarts"] == 2)
    assert status["changes"] == {"max_model_len": 2048}
    command = Path(f"/proc/{status['pid']}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--max-model-len") + 1] == b"2048"


def test_a_healthy_api_in_front_of_a_dead_engine_is_stalled_then_restarted(
    scripted: Scripted,
) -> None:
    """/health answers 200, requests run, no iteration: engine.stalled, restart."""
    script = Script(dies_on="die now", first=1, counter=str(scripted.home / "starts"))
    scripted.plays(script, limits={"stall_grace_s": 12.0})
    assert scripted.up().returncode == 0
    first = scripted.status()["pid"]
    body = {"model": "deepseek-v4-canary", "messages": [{"role": "user", "content": "die now"}]}
    url = f"http://127.0.0.1:{scripted.port}"
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=1)
    assert httpx.get(f"{url}/health", timeout=10).status_code == 200
    again = scripted.until(lambda s: s["ready"] and s["pid"] != first)
    assert again["restarts"] == 1
    died = next(e for e in scripted.events() if e["event"] == "died")
    assert died["cause"] == "engine.stalled"


def test_a_down_during_the_wait_before_a_restart_is_the_end_of_it(scripted: Scripted) -> None:
    scripted.plays(Script(), limits={"backoff_s": 60.0})
    assert scripted.up().returncode == 0
    os.kill(scripted.status()["pid"], signal.SIGKILL)
    waiting = scripted.until(lambda s: s["restart_at"] is not None)
    assert waiting["phase"] == "failed"
    assert scripted.run("down").returncode == 0
    assert scripted.status()["phase"] == "stopped"
    assert left_running(scripted.home) == []


def test_an_up_during_the_wait_before_a_restart_starts_at_once(scripted: Scripted) -> None:
    scripted.plays(Script(), limits={"backoff_s": 60.0})
    assert scripted.up().returncode == 0
    os.kill(scripted.status()["pid"], signal.SIGKILL)
    scripted.until(lambda s: s["restart_at"] is not None)
    assert scripted.up().returncode == 0
    assert scripted.status()["ready"] is True
