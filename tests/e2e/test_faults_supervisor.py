"""The supervisor itself is killed, hung up on and run twice: the engine is never lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import STATUS_PATIENCE_S, Scripted, events_until, left_running, rest_of
from tests.support.engine import Script

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "event", ["engine-version", "load-start", "kv-cache", "engine-ready", "known-answer"]
)
def test_an_up_that_is_killed_loses_nothing(scripted: Scripted, event: str) -> None:
    """kill -9 in any phase: the engine runs on, the next status adopts it, and it gets ready."""
    scripted.plays(Script(pace_s=0.2))
    process = scripted.start_up()
    events_until(process, event)
    process.kill()
    process.communicate()
    adopted = scripted.until(lambda s: s["pid"] is not None)
    ready = scripted.until(lambda s: s["ready"])
    assert ready["pid"] == adopted["pid"]
    assert ready["supervisor"] is not None
    assert scripted.names().count("start") == 1


def test_an_up_that_is_killed_around_the_start_of_the_engine_leaves_no_riddle(
    scripted: Scripted,
) -> None:
    """Either there is an engine and it is adopted, or there is none and status says so."""
    process = scripted.start_up()
    events_until(process, "start")
    process.kill()
    process.communicate()
    scripted.until(lambda s: s["ready"] or (s["phase"] == "failed" and s["pid"] is None))
    up = scripted.up()
    assert up.returncode == 0, up.stderr


def test_the_next_up_adopts_what_a_killed_one_left(scripted: Scripted) -> None:
    scripted.plays(Script(pace_s=0.3))
    process = scripted.start_up()
    events_until(process, "load-start")
    process.kill()
    process.communicate()
    pid = scripted.status()["pid"]
    up = scripted.up()
    assert up.returncode == 0, up.stderr
    assert scripted.status()["pid"] == pid


def test_a_killed_supervisor_is_replaced_by_the_next_status(scripted: Scripted) -> None:
    assert scripted.up().returncode == 0
    before = scripted.until(lambda s: "adopted" in scripted.names())
    os.kill(before["supervisor"], signal.SIGKILL)
    scripted.status()
    after = scripted.until(lambda s: s["supervisor"] not in (None, before["supervisor"]))
    assert after["pid"] == before["pid"]
    assert after["ready"] is True


def test_a_supervisor_that_is_asked_to_end_leaves_the_engine(scripted: Scripted) -> None:
    assert scripted.up().returncode == 0
    scripted.until(lambda s: "adopted" in scripted.names())
    status = scripted.status()
    os.kill(status["supervisor"], signal.SIGTERM)
    deadline = time.monotonic() + STATUS_PATIENCE_S
    while Path(f"/proc/{status['supervisor']}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert scripted.status()["pid"] == status["pid"]


def test_a_closed_terminal_ends_no_attached_supervision_badly(scripted: Scripted) -> None:
    """SIGHUP after ready under --attach: the view ends (exit code 0), the engine runs on."""
    process = scripted.start_up("--attach")
    events_until(process, "ready")
    events_until(process, "adopted")
    process.send_signal(signal.SIGHUP)
    _, said = rest_of(process)
    assert process.returncode == 0, said
    assert scripted.status()["ready"] is True


def test_two_ups_at_once_are_one_deployment_and_one_supervisor(scripted: Scripted) -> None:
    scripted.plays(Script(pace_s=0.1))
    both = [scripted.start_up() for _ in range(2)]
    for process in both:
        _, said = rest_of(process)
        assert process.returncode == 0, said
    assert scripted.names().count("start") == 1
    assert scripted.until(lambda s: s["supervisor"] is not None)["ready"]


def test_down_and_up_at_once_leave_no_half(scripted: Scripted) -> None:
    """Whoever comes last: either all of it is up, or nothing is."""
    assert scripted.up().returncode == 0
    up, down = (
        scripted.start_up(),
        subprocess.Popen(scripted.command("down"), env=scripted.env, stderr=subprocess.DEVNULL),
    )
    rest_of(up)
    assert down.wait(timeout=STATUS_PATIENCE_S) == 0
    status = scripted.status()
    assert status["ready"] or status["pid"] is None
    if not status["ready"]:
        scripted.run("down")
        assert left_running(scripted.home) == []


def test_under_systemd_it_tells_how_it_stands_and_leaves_the_engine_when_told_to_end(
    scripted: Scripted,
) -> None:
    """A stand-in for the manager's socket: status and more time while loading, then READY=1, pings
    of the watchdog; gauges are served; SIGTERM ends it with 0 and the engine runs on."""
    scripted.plays(Script(pace_s=0.1))
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(scripted.home / "notify"))
    manager.settimeout(STATUS_PATIENCE_S)
    gauges = scripted.home / "metrics"
    scripted.extra |= {"NOTIFY_SOCKET": str(scripted.home / "notify"), "WATCHDOG_USEC": "2000000"}
    process = scripted.start_up("--foreground", "--metrics", f"unix:{gauges}")
    heard: list[dict[str, str]] = []

    def until(name: str) -> None:
        while name not in (heard[-1] if heard else {}):
            lines = manager.recv(4096).decode().splitlines()
            heard.append(dict(line.split("=", 1) for line in lines))

    until("READY")
    assert any("EXTEND_TIMEOUT_USEC" in one for one in heard)
    assert any(one.get("STATUS", "").startswith("loading: ") for one in heard)
    assert all("WATCHDOG" not in one for one in heard[:-1])
    assert heard[-1]["MAINPID"] == str(process.pid)
    for _ in range(3):
        heard.clear()
        until("WATCHDOG")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(gauges))) as client:
        assert "dsctl_ready 1.0" in client.get("http://dsctl/metrics").text
    process.terminate()
    _, said = rest_of(process)
    assert process.returncode == 0, said
    del scripted.extra["NOTIFY_SOCKET"]
    assert scripted.status()["ready"] is True
