"""A machine that restarted under us, and what is different since it last went well."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from dsctl.host.collect import collect
from dsctl.model.deployment import Deployment, ProcessIdentity
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.supervise.rules.history import KEEP, History, HostMark, StartRecord
from dsctl.supervise.rules.reboot import differences, mark_of, rebooted
from dsctl.supervise.samplers.history import read_history, record_start

GOOD = HostMark(boot_id="one", kernel="6.8", driver="580.1", bios="F1", image="sha256:a")
NOW = HostMark(boot_id="two", kernel="6.8", driver="595.2", bios="F2", image="sha256:a")


def left(phase: Phase, boot: str = "one", *, process: bool = True) -> Deployment:
    return Deployment(
        profile="dual96-dspark",
        engine="process",
        endpoint=Endpoint(port=1),
        model="m",
        phase=phase,
        since=5.0,
        started=1.0,
        engine_process=ProcessIdentity(pid=1, start_ticks=1, boot_id=boot) if process else None,
    )


@pytest.mark.parametrize(("phase", "doing"), [(Phase.LOADING, "loading"), (Phase.READY, "serving")])
def test_a_reboot_under_load_is_told_with_what_changed(phase: Phase, doing: str) -> None:
    found = rebooted(left(phase), NOW, GOOD)
    assert found is not None
    assert found.cause == "host.rebooted"
    assert found.summary == (
        f"the machine restarted while dual96-dspark was {doing}; since the last good start: "
        "GPU driver 580.1 is now 595.2, BIOS F1 is now F2"
    )


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (None, NOW),
        (left(Phase.STOPPED), NOW),
        (left(Phase.FAILED), NOW),
        (left(Phase.READY, "two"), NOW),
        (left(Phase.READY, ""), NOW),
        (left(Phase.READY, process=False), NOW),
        (left(Phase.READY), HostMark()),
    ],
)
def test_it_is_no_reboot_when(was: Deployment | None, now: HostMark) -> None:
    assert rebooted(was, now, GOOD) is None


def test_what_is_unknown_on_a_side_is_no_difference() -> None:
    assert differences(HostMark(kernel="6.8"), HostMark(kernel="6.9", driver="580")) == (
        "kernel 6.8 is now 6.9",
    )


def test_marks_come_from_the_facts() -> None:
    host = Path(__file__).parents[4] / "tests" / "hosts" / "workstation-dual-healthy"
    mark = mark_of(collect(host), "sha256:b")
    assert mark.boot_id is not None
    assert mark.kernel is not None
    assert mark.driver is not None
    assert mark.image == "sha256:b"


def start(t: float, key: str = "k", **given: object) -> StartRecord:
    return StartRecord.model_validate({"t": t, "profile": "p", "key": key, "ready_s": 10.0} | given)


def test_the_expectation_is_the_median_of_the_newest_starts_of_that_key() -> None:
    history = History()
    for t, loading in enumerate([500, 10, 20, 30, 40, 50]):
        history = history.with_start(start(t, phases_s={"loading": loading}))
    history = history.with_start(start(9, key="other", phases_s={"loading": 1.0}))
    assert history.expected_s("k") == {"loading": 30}
    assert history.expected_s("never") == {}


def test_it_stays_small() -> None:
    history = History()
    for t in range(KEEP + 20):
        history = history.with_start(start(t))
    assert len(history.starts) == KEEP
    assert history.starts[-1].t == KEEP + 19


def test_the_file_keeps_starts_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.json"
    assert read_history(path) == History()
    assert record_start(path, start(1.0))
    assert record_start(path, start(2.0))
    assert [s.t for s in read_history(path).starts] == [1.0, 2.0]
    assert read_history(path).last_good("p") == start(2.0)
    path.write_text(path.read_text()[:-20])
    assert read_history(path) == History()
    assert record_start(path, start(3.0))
    assert [s.t for s in read_history(path).starts] == [3.0]


def test_the_file_of_a_newer_dsctl_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text('{"version": 99, "starts": [], "more": 1}')
    assert record_start(path, start(1.0)) is False
    assert "99" in path.read_text()


def test_a_record_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError):
        start(1.0, colour="red")
