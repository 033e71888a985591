"""The unit and its notifications, against a stand-in for systemd's socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dsctl.model.event import Event, Phase
from dsctl.supervise.notify import Notifier
from dsctl.supervise.unit import unit_text


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    """What systemd listens on."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(10)
    return listener


def told(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def notifier(manager: socket.socket, watchdog_s: float | None = None) -> Notifier:
    env = {"NOTIFY_SOCKET": manager.getsockname()}
    if watchdog_s is not None:
        env |= {"WATCHDOG_USEC": str(int(watchdog_s * 1e6)), "WATCHDOG_PID": str(os.getpid())}
    found = Notifier.of_environment(env)
    assert found is not None
    return found


def event(phase: Phase, name: str, **extra: object) -> Event:
    return Event(t=1.0, phase=phase, event=name, message="says so", **extra)


def test_outside_of_a_unit_nobody_is_told() -> None:
    assert Notifier.of_environment({}) is None
    assert Notifier.of_environment({"NOTIFY_SOCKET": "vsock:2:1234"}) is None


def test_a_load_is_a_status_and_more_time(manager: socket.socket) -> None:
    notifier(manager).event(event(Phase.LOADING, "load-progress"))
    said = told(manager)
    assert said["STATUS"] == "loading: says so"
    assert int(said["EXTEND_TIMEOUT_USEC"]) >= 60_000_000
    assert "READY" not in said


def test_ready_is_said_once_with_the_main_pid(manager: socket.socket) -> None:
    teller = notifier(manager)
    teller.event(event(Phase.READY, "ready", ready=True))
    said = told(manager)
    assert (said["READY"], said["MAINPID"]) == ("1", str(os.getpid()))
    teller.event(event(Phase.READY, "adopted"))
    assert "READY" not in told(manager)


def test_a_failed_start_is_stopping(manager: socket.socket) -> None:
    notifier(manager).event(event(Phase.FAILED, "failed", ready=False))
    assert told(manager)["STOPPING"] == "1"


def test_the_watchdog_gets_its_ping_in_half_its_time(manager: socket.socket) -> None:
    now = [100.0]
    teller = notifier(manager, watchdog_s=10.0)
    teller.clock = lambda: now[0]
    pings = 0
    manager.setblocking(False)
    for _ in range(31):  # seconds
        teller.tick()
        now[0] += 1.0
        try:
            pings += told(manager) == {"WATCHDOG": "1"}
        except BlockingIOError:
            continue
    assert pings == 7  # at 0, 5, …, 30 s


def test_a_watchdog_of_another_process_is_not_ours(manager: socket.socket) -> None:
    env = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"}
    found = Notifier.of_environment(env)
    assert found is not None
    assert found.watchdog_s is None


def test_a_manager_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "nobody")).event(event(Phase.READY, "ready"))


def test_the_unit_keeps_the_engine_when_its_supervisor_goes() -> None:
    text = unit_text(["/opt/dsctl"], ["--profile", "a b"], title="50 % of it")
    for line in ("Type=notify", "KillMode=process", "ExecStop=/opt/dsctl down"):
        assert line in text.splitlines()
    assert 'ExecStart=/opt/dsctl up --profile "a b" --foreground' in text
    assert "Description=50 %% of it" in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("user", [None, "root"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, user: str | None) -> None:
    unit = tmp_path / "dsctl.service"
    arguments = ["--profile", "cpu-canary", "--set", "checkpoint=/with space/$HOME"]
    unit.write_text(unit_text([sys.executable], arguments, title="t", docker=False, user=user))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    about_ours = [line for line in done.stderr.splitlines() if "dsctl.service" in line]
    assert about_ours == []
