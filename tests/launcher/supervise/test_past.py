"""What a machine remembers: how long starts took, and that it was rebooted under one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.engine.keeper import boot_id
from dsctl.engine.state import StateDirectory
from dsctl.model.deployment import Deployment, ProcessIdentity
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.facts import Facts, System
from dsctl.paths import Paths
from dsctl.supervise.operate import status
from dsctl.supervise.past import was_rebooted
from dsctl.supervise.rules.history import HostMark, StartRecord
from dsctl.supervise.samplers.history import record_start


def left(phase: Phase, boot: str) -> Deployment:
    return Deployment(
        profile="cpu-canary",
        engine="process",
        endpoint=Endpoint(port=1),
        model="m",
        phase=phase,
        since=5.0,
        started=1.0,
        engine_process=ProcessIdentity(pid=1, start_ticks=1, boot_id=boot),
    )


def good_start(state: StateDirectory) -> None:
    host = HostMark(boot_id="before", kernel="6.1", driver="580.82", bios="F3")
    record_start(
        state.history_file,
        StartRecord(t=1.0, profile="cpu-canary", key="k", ready_s=3.0, host=host),
    )


NOW = Facts(system=System(kernel="6.8", boot_id=boot_id(), bios_version="F3"))


def test_a_reboot_under_a_running_deployment_is_told_with_what_changed(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "deployment")
    good_start(state)
    verdict = was_rebooted(state, left(Phase.READY, "before"), lambda: NOW)
    assert verdict is not None
    assert verdict.cause == "host.rebooted"
    assert "kernel 6.1 is now 6.8" in verdict.summary
    assert "BIOS" not in verdict.summary


@pytest.mark.parametrize(
    "deployment",
    [
        None,
        left(Phase.STOPPED, "before"),
        left(Phase.FAILED, "before"),
        left(Phase.READY, boot_id()),
    ],
)
def test_no_reboot_and_no_facts_are_asked_for(
    tmp_path: Path, deployment: Deployment | None
) -> None:
    def never() -> Facts:
        raise AssertionError("facts cost time: only where the boot is another one")

    assert was_rebooted(StateDirectory(tmp_path), deployment, never) is None


def test_status_after_a_reboot_is_failed_with_the_cause(tmp_path: Path) -> None:
    paths = Paths(data=tmp_path, state=tmp_path, cache=tmp_path, config=tmp_path)
    state = StateDirectory(paths.deployment)
    state.directory.mkdir()
    state.write(left(Phase.LOADING, "another boot"))
    now = status(paths)
    assert (now.phase, now.last_cause, now.ready) == (Phase.FAILED, "host.rebooted", False)
    assert now.reason is not None
    assert "restarted while cpu-canary was loading" in now.reason
    assert now.supervisor is None
