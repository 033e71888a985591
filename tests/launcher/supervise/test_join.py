"""What a second `dsctl up` makes of what it finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsctl.engine.identity import identify
from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError, EngineError, InterruptedByUserError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.supervise.join import existing
from dsctl.supervise.prepare import Request, checked


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path)


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def record(**changes: object) -> Deployment:
    return Deployment(
        profile="cpu-canary",
        engine="process",
        endpoint=Endpoint(port=9),  # nothing answers there
        model="canary",
        phase=Phase.READY,
        since=100.0,
        started=90.0,
    ).model_copy(update=changes)


def test_nothing_recorded_is_nothing_there(state: StateDirectory) -> None:
    assert existing(state, Request("cpu-canary"), 0.0, joined_a_start=False) is None


@pytest.mark.parametrize(
    ("phase", "error"), [(Phase.STOPPED, InterruptedByUserError), (Phase.FAILED, EngineError)]
)
def test_the_end_of_a_joined_start_is_ours_too(
    state: StateDirectory, phase: Phase, error: type[Exception]
) -> None:
    state.write(record(phase=phase))
    with pytest.raises(error):
        existing(state, Request("cpu-canary"), 99.0, joined_a_start=True)


def test_the_end_of_an_earlier_start_or_of_a_down_is_not(state: StateDirectory) -> None:
    state.write(record(phase=Phase.STOPPED))
    assert existing(state, Request("cpu-canary"), 101.0, joined_a_start=True) is None
    assert existing(state, Request("cpu-canary"), 99.0, joined_a_start=False) is None


def test_another_profile_or_other_overrides_are_refused(
    state: StateDirectory, living: subprocess.Popen[bytes]
) -> None:
    state.write(record(engine_process=identify(living.pid)))
    for request in (Request("dual96-native"), Request("cpu-canary", {"port": "8001"})):
        with pytest.raises(NotGoodError, match="cpu-canary is up"):
            existing(state, request, 0.0, joined_a_start=False)


def test_a_living_engine_that_does_not_answer_is_not_up(
    state: StateDirectory, living: subprocess.Popen[bytes]
) -> None:
    state.write(record(engine_process=identify(living.pid)))
    with pytest.raises(EngineError, match="does not answer"):
        existing(state, Request("cpu-canary"), 0.0, joined_a_start=False)


@pytest.mark.parametrize("timeout_s", [0.0, -5.0, float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="--timeout"):
        checked(Request("cpu-canary", timeout_s=timeout_s))


def test_relative_paths_are_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    request = checked(Request("cpu-canary", {"checkpoint": "model", "port": "1"}))
    assert request.overrides == {"checkpoint": str(tmp_path / "model"), "port": "1"}
    assert checked(Request("cpu-canary", {"checkpoint": "canary/model"})).overrides == {
        "checkpoint": "canary/model"
    }, "a shipped one stays as it is"
    with pytest.raises(ConfigError, match="checkpoint= is empty"):
        checked(Request("cpu-canary", {"checkpoint": ""}))
