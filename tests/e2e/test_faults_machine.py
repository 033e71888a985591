"""A machine that lacks disk, memory or speed, and the real engine on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import STATUS_PATIENCE_S, Dsctl, Scripted, failed_with, left_running
from tests.support.engine import Script
from tests.support.machine import fill, memory_limit, mounted

pytestmark = pytest.mark.engine


def test_a_full_disk_is_named_before_the_start_and_survived_after_it(scripted: Scripted) -> None:
    """Exit code 2 with the file; a running engine goes on, and status still tells."""
    with mounted(scripted.home / "state", "-o", "size=3m"):
        filler = scripted.home / "state" / "filler"
        fill(filler)
        full = scripted.up()
        assert full.returncode == 2, full.stderr
        assert "state" in full.stderr
        assert "Traceback" not in full.stderr
        filler.unlink()
        assert scripted.up().returncode == 0
        pid = scripted.status()["pid"]
        fill(filler)
        time.sleep(2.0)
        status = scripted.status()
        assert (status["ready"], status["pid"]) == (True, pid)
        filler.unlink()
        assert scripted.run("down").returncode == 0


def test_a_read_only_cache_is_named_before_the_start(scripted: Scripted) -> None:
    """Exit code 2, naming the directory and what it is for."""
    cache = scripted.home / "cache"
    with mounted(cache, "-o", "ro"):
        scripted.extra["XDG_CACHE_HOME"] = str(cache)
        up = scripted.up()
    failed_with(up, 2, str(cache))
    assert left_running(scripted.home) == []


def test_a_memory_limit_below_the_peak_is_named_with_its_cause(scripted: Scripted) -> None:
    """Killed by the control group's limit, or refused just before: never an unknown cause."""
    scripted.plays(Script(fault="eat", at="loading"))
    with memory_limit(256 << 20) as prefix:
        up = subprocess.run(
            [*prefix, *scripted.command(*scripted.up_arguments())],
            env=scripted.env,
            capture_output=True,
            text=True,
            timeout=STATUS_PATIENCE_S,
            check=False,
        )
        status = scripted.status()
    failed_with(up, 3)
    assert status["last_cause"] in (
        "container.oom-killed",
        "memory.host-oom-kill",
        "memory.swap-thrash",
    )
    assert left_running(scripted.home) == []


@pytest.mark.long
def test_the_real_engine_loses_its_supervisor_then_its_worker(canary: Dsctl) -> None:
    """Adopted by the next status; restarted after engine.worker-died; its bundle says the same."""
    up = canary.run(*canary.up_arguments("--engine", "process"))
    assert up.returncode == 0, up.stderr
    first = canary.status()
    os.kill(first["supervisor"], signal.SIGKILL)
    canary.status()
    adopted = canary.status()
    assert adopted["pid"] == first["pid"]
    assert adopted["supervisor"] not in (None, first["supervisor"])

    engine = psutil.Process(first["pid"])
    workers = [p for p in engine.children(recursive=True) if "Worker" in p.name()]
    assert workers, [p.name() for p in engine.children(recursive=True)]
    workers[0].send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 900
    while (status := canary.status())["restarts"] != 1 or not status["ready"]:
        assert time.monotonic() < deadline, status
        time.sleep(1.0)
    assert status["pid"] != first["pid"]

    out = canary.home / "bundle.tar.gz"
    assert canary.run("bundle", "-o", str(out)).returncode == 0
    diagnosed = canary.run("diagnose", str(out), "--format", "json")
    assert diagnosed.returncode == 0, diagnosed.stdout
    assert json.loads(diagnosed.stdout)["cause"]["id"] == "engine.worker-died"


def test_the_real_engine_under_a_limit_below_its_peak_is_named(canary: Dsctl) -> None:
    """1 GiB where 2 are needed: killed by the control group, said with its cause; exit code 3."""
    with memory_limit(1 << 30) as prefix:
        up = subprocess.run(
            [*prefix, *canary.command(*canary.up_arguments("--engine", "process"))],
            env=canary.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        status = canary.status()
    failed_with(up, 3)
    assert status["last_cause"] in ("container.oom-killed", "memory.host-oom-kill"), up.stderr
    assert left_running(canary.home) == []


def test_a_slow_disk_is_slow_and_not_stuck(scripted: Scripted) -> None:
    """Weights at 1 MB/s: bytes move, so it is waited for, with what is left; exit code 0."""
    checkpoint = scripted.home / "model"
    source = Path(__file__).resolve().parents[2] / "canary" / "model"
    shutil.copytree(source, checkpoint)
    scripted.plays(Script(fault="slow-read", at="loading"), limits={"stuck_s": 4.0})
    up = scripted.up("--set", f"checkpoint={checkpoint}", "--format", "json")
    assert up.returncode == 0, up.stderr
    events = [json.loads(line) for line in up.stdout.splitlines()]
    told = [e for e in events if e["event"] == "outlook-progress" and e["phase"] == "loading"]
    assert any(e["total"] and 0 < e["done"] < e["total"] for e in told), told
