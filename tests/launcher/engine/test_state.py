"""The deployment's record on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.paths import Paths
from dsctl.supervise.operate import status, take_down


def deployment(**changes: object) -> Deployment:
    return Deployment(
        profile="cpu-canary",
        engine="process",
        endpoint=Endpoint(port=8000),
        model="canary",
        phase=Phase.READY,
        since=1.0,
        started=0.0,
    ).model_copy(update=changes)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))
    made.deployment.mkdir(parents=True)
    return made


def test_what_is_written_is_read_again_and_private(paths: Paths) -> None:
    state = StateDirectory(paths.deployment)
    assert state.read() is None
    state.write(deployment(overrides={"port": "8001"}))
    assert state.read() == deployment(overrides={"port": "8001"})
    assert state.state_file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "x": 2}'])
def test_a_damaged_record_is_named_and_not_guessed_at(paths: Paths, text: str) -> None:
    state = StateDirectory(paths.deployment)
    state.state_file.write_text(text)
    with pytest.raises(ConfigError, match="is damaged") as caught:
        state.read()
    assert str(state.state_file) in caught.value.message
    assert caught.value.remedy


def test_the_record_of_a_newer_dsctl_is_refused(paths: Paths) -> None:
    state = StateDirectory(paths.deployment)
    state.write(deployment())
    newer = json.loads(state.state_file.read_text()) | {"version": 99, "unheard_of": True}
    state.state_file.write_text(json.dumps(newer))
    with pytest.raises(ConfigError, match="newer dsctl"):
        state.read()


def test_status_without_a_deployment_is_stopped(paths: Paths) -> None:
    now = status(paths)
    assert (now.ready, now.phase, now.profile) == (False, Phase.STOPPED, None)


def test_a_record_whose_process_is_gone_is_not_ready(paths: Paths) -> None:
    from dsctl.engine.identity import boot_id
    from dsctl.model.deployment import ProcessIdentity

    gone = ProcessIdentity(pid=1, start_ticks=12345678901, boot_id=boot_id())
    StateDirectory(paths.deployment).write(deployment(engine_process=gone))
    now = status(paths)
    assert (now.ready, now.phase, now.pid) == (False, Phase.FAILED, None)
    assert now.last_cause == "engine.worker-died"


def test_a_record_of_another_boot_signals_nobody(paths: Paths) -> None:
    """A pid of before the reboot may belong to anybody now."""
    import os

    from dsctl.engine.identity import identify

    me = identify(os.getpid()).model_copy(update={"boot_id": "before the reboot"})
    StateDirectory(paths.deployment).write(deployment(engine_process=me))
    assert status(paths).ready is False
    assert take_down(paths, lambda: 5.0) is None
    assert status(paths).phase is Phase.STOPPED


def test_down_without_anything_to_take_down_is_quiet(paths: Paths) -> None:
    assert take_down(paths, lambda: 5.0) is None
