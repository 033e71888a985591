"""A watched start, on an injected clock: ready only after a right answer, whatever else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError, TimedOutError
from dsctl.model.event import Phase
from dsctl.supervise.readiness import NotYet, Outcome, Right, Wrong
from tests.support.engine.world import LOG, World


def test_a_start_goes_through_its_phases_to_ready(tmp_path: Path) -> None:
    world = World(tmp_path, outcomes=[NotYet(), NotYet(), Right({})])
    assert world.run().phase is Phase.READY
    phases = list(dict.fromkeys(e.phase for e in world.events))
    assert phases == [
        Phase.STARTING,
        Phase.LOADING,
        Phase.ALLOCATING,
        Phase.WARMING,
        Phase.READY,
    ]
    assert world.events[-1].extra("ready") is True
    assert StateDirectory(tmp_path).read() is not None


def test_it_asks_again_while_nobody_answers(tmp_path: Path) -> None:
    world = World(tmp_path, outcomes=[NotYet(), NotYet(), Right({})])
    assert world.run().phase is Phase.READY
    assert world.readiness.asked == 3


def test_an_engine_that_ends_is_an_engine_error_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"while loading \(exit code 1\)"):
        World(tmp_path, lines=LOG[:2], lives=4).run()


def test_the_last_words_of_an_engine_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, lives=3, lines=[*LOG[:2], "RuntimeError: the last words"])
    with pytest.raises(EngineError):
        world.run()


def test_the_error_that_is_told_is_the_one_below_the_wrappers(tmp_path: Path) -> None:
    lines = [
        *LOG[:2],
        "(Worker pid=3) ERROR dsctl.Strange: OddError: the pack is gone",
        "(EngineCore pid=2) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    with pytest.raises(EngineError, match="OddError: the pack is gone"):
        World(tmp_path, lines=lines, lives=6).run()


def test_a_wrong_answer_fails_the_start(tmp_path: Path) -> None:
    wrong = Wrong("output.garbage", "said !!!!", "do not serve")
    world = World(tmp_path, outcomes=[wrong])
    with pytest.raises(EngineError, match="said !!!!") as caught:
        world.run()
    assert caught.value.remedy == "do not serve"
    assert getattr(caught.value, "cause", None) == "output.garbage"


def test_silence_past_the_deadline_times_out(tmp_path: Path) -> None:
    with pytest.raises(TimedOutError, match="phase starting"):
        World(tmp_path, lines=[], outcomes=[NotYet()], timeout_s=5).run()


def test_a_log_that_says_nothing_of_http_does_not_hide_a_server(tmp_path: Path) -> None:
    assert World(tmp_path, lines=LOG[:4]).run().phase is Phase.READY


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(st.sampled_from([*LOG, "some other line", "ERROR something"]), max_size=12),
    outcomes=st.lists(
        st.sampled_from([NotYet(), Wrong("output.garbage", "bad", "r")]), min_size=1, max_size=5
    ),
    lives=st.one_of(st.none(), st.integers(0, 15)),
)
def test_never_ready_before_a_right_answer(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    outcomes: list[Outcome],
    lives: int | None,
) -> None:
    """Law: without a right answer no start is ready, whatever the log says."""
    world = World(tmp_path_factory.mktemp("w"), lines, outcomes, lives, timeout_s=20)
    with pytest.raises((EngineError, TimedOutError)):
        world.run()
    assert all(e.phase is not Phase.READY for e in world.events)
