"""The driver asked for real: pynvml, the dynamic linker, and a library that answers from a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsctl.host.nvml import ask_driver, may_have_library, parse_nvml
from dsctl.model.facts import NvmlState
from tests.support.nvml import standin

HOSTS = Path(__file__).parents[2] / "hosts"
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def ask(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    def ask_with(nvml: dict[str, Any], deadline_s: float = 10.0, **orders: Any) -> dict[str, Any]:
        answers = standin.write_answers(nvml, tmp_path / "answers", **orders)
        for name, value in standin.environment(library, answers).items():
            monkeypatch.setenv(name, value)
        return ask_driver(deadline_s)

    return ask_with


@pytest.mark.parametrize(
    "host", ["server-two-socket", "workstation-dual-iommu", "rtx-5090", "swapping", "wsl2-96gb"]
)
def test_the_library_and_the_recording_give_the_same_value(ask: Ask, host: str) -> None:
    recorded = standin.read_json(HOSTS / host)
    assert parse_nvml(ask(recorded)) == parse_nvml(recorded)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (18, NvmlState.MISMATCH),
        (15, NvmlState.LOST),
        (999, NvmlState.ERROR),
        (9, NvmlState.ERROR),
    ],
)
def test_a_failing_library_says_why(ask: Ask, code: int, state: NvmlState) -> None:
    found = parse_nvml(ask({"error": "", "code": code}))
    assert (found.state, found.code) == (state, code)
    assert found.error


def test_a_gpu_lost_after_the_start_is_seen(ask: Ask) -> None:
    recorded = standin.read_json(HOSTS / "server-two-socket")
    found = parse_nvml(ask(recorded, fail_nvmlDeviceGetMemoryInfo=15))
    assert found.state is NvmlState.LOST


def test_a_card_that_lacks_one_answer_gives_all_others(ask: Ask) -> None:
    recorded = standin.read_json(HOSTS / "server-two-socket")
    (gpu,) = parse_nvml(ask(recorded, fail_nvmlDeviceGetBAR1MemoryInfo=3)).gpus
    assert gpu.bar1_total_bytes is None
    assert gpu.memory_total_bytes == recorded["devices"][0]["memory_total"]


def test_without_the_library_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if _has_driver():
        pytest.skip("this machine has an NVIDIA driver")
    assert parse_nvml(ask_driver(10.0)).state is NvmlState.NO_LIBRARY


def test_the_helper_itself_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if _has_driver():
        pytest.skip("this machine has an NVIDIA driver")
    found = ask_driver(10.0, [sys.executable, "-m", "dsctl.host.nvml_child"])
    assert found == {"error": "library not found"}


def test_the_library_is_looked_for_where_the_linker_does(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(b"\0libc.so.6\0")
    if not _has_driver():
        assert not may_have_library({}, cache)
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert may_have_library({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}, cache)
    cache.write_bytes(b"\0libnvidia-ml.so.1\0/usr/lib/wsl/lib/libnvidia-ml.so.1")
    assert may_have_library({}, cache)
    assert may_have_library({}, tmp_path / "no-cache-on-this-system")


def _has_driver() -> bool:
    code = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
def test_a_call_that_never_returns_is_given_up_and_named(ask: Ask, function: str) -> None:
    recorded = standin.read_json(HOSTS / "server-two-socket")
    began = time.monotonic()
    found = parse_nvml(ask(recorded, deadline_s=1.0, hang=function))
    assert time.monotonic() - began < 30, "a loaded machine takes its time to start the helper"
    assert found.state is NvmlState.SILENT
    assert found.stuck_in is not None
    assert found.stuck_in.removesuffix("_v2") in ("nvmlInit", "nvmlDeviceGetPowerUsage")


def test_killing_the_helper_in_a_call_leaves_an_answer(ask: Ask) -> None:
    recorded = standin.read_json(HOSTS / "server-two-socket")
    killer = threading.Thread(target=_kill_helper)
    killer.start()
    found = parse_nvml(ask(recorded, deadline_s=8.0, hang="nvmlDeviceGetName"))
    killer.join()
    assert found.state is NvmlState.ERROR
    assert "signal 9" in (found.error or "")
    assert found.stuck_in == "nvmlDeviceGetName"


def _kill_helper() -> None:
    """Waits until our helper hangs in its call, then kills it."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        for child in psutil.Process().children():
            try:
                if "dsctl.host.nvml_child" in child.cmdline() and child.status() == "sleeping":
                    time.sleep(0.7)
                    os.kill(child.pid, signal.SIGKILL)
                    return
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
