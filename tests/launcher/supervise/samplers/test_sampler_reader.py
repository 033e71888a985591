"""A reader may fail or hang: what is lost is its own value, and the reason is said."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dsctl.engine.identity import identify
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.sample import ContainerEvent
from dsctl.supervise.samplers.gpu import GpuReader
from dsctl.supervise.samplers.reader import Reader, Unreadable
from dsctl.supervise.samplers.sampling import Sampling, Subject

PATIENCE_S = 60.0


def reader(read: object, clock: object = lambda: 0.0) -> Reader[int]:
    return Reader("thing", read, every_s=1.0, deadline_s=5.0, clock=clock)  # type: ignore[arg-type]


def test_a_value_is_kept_until_the_next() -> None:
    values = iter([1, 2])
    thing = reader(lambda: next(values))
    assert thing.latest() == (None, "not read yet")
    thing.read_now()
    assert thing.latest() == (1, "")
    thing.read_now()
    assert thing.latest() == (2, "")
    assert thing.cost.reads == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unreadable("no such file"), "no such file"),
        (ZeroDivisionError("by nought"), "thing: ZeroDivisionError: by nought"),
    ],
)
def test_an_error_is_a_reason_not_a_crash(error: Exception, said: str) -> None:
    def fail() -> int:
        raise error

    thing = reader(fail)
    thing.read_now()
    assert thing.latest() == (None, said)


def test_a_reader_that_recovers_has_its_value_back() -> None:
    answers = iter([Unreadable("gone"), 7])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    thing = reader(read)
    thing.read_now()
    thing.read_now()
    assert thing.latest() == (7, "")


def test_a_read_that_hangs_is_said_to_hang_and_nobody_waits() -> None:
    now = [0.0]
    entered, release = threading.Event(), threading.Event()

    def hang() -> int:
        entered.set()
        release.wait(PATIENCE_S)
        return 1

    thing = reader(hang, lambda: now[0])
    thing.start()
    assert entered.wait(PATIENCE_S)
    now[0] = 9.0
    assert thing.latest() == (None, "thing: no answer for 9 s")
    thing.stop()
    release.set()


def test_a_value_too_old_for_its_pace_is_none() -> None:
    now = [0.0]
    thing = reader(lambda: 1, lambda: now[0])
    thing.read_now()
    now[0] = 7.0
    assert thing.latest() == (1, "")
    now[0] = 9.0
    assert thing.latest() == (None, "thing: last read 9 s ago")


def test_a_paused_reader_keeps_its_last_value() -> None:
    now = [0.0]
    thing = reader(lambda: 1, lambda: now[0])
    thing.read_now()
    thing.pace(None)
    now[0] = 1e6
    assert thing.latest() == (1, "")


def test_one_hanging_reader_leaves_all_the_others_their_values(tmp_path: Path) -> None:
    """The real set of readers on this very process, with a container engine that hangs."""
    import os

    release = threading.Event()

    def hang() -> list[ContainerEvent]:
        release.wait(PATIENCE_S)
        return []

    log = tmp_path / "engine.log"
    log.write_text("INFO something new\n")
    subject = Subject(
        engine=identify(os.getsid(0)) if os.getsid(0) else identify(os.getpid()),
        endpoint=Endpoint(port=1),
        log=log,
    )
    gone = GpuReader(command=("false",))
    sampling = Sampling(subject, events=hang, gpu=gone)
    sampling.start()
    try:
        waited = threading.Event()
        for _ in range(600):
            sample = sampling.sample(Phase.LOADING)
            if sample.host is not None and sample.log is not None and sample.log.lines:
                break
            waited.wait(0.1)
        assert sample.host is not None
        assert sample.host.total_bytes > 0
        assert sample.log is not None
        assert sample.log.last_line == "INFO something new"
        assert "containers" in sample.missing
        assert sample.container_events == ()
    finally:
        release.set()
        sampling.close()
