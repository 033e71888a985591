"""The load peak, told early; and thrashing, told by stall times and never by free memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.model.event import Phase
from dsctl.model.sample import Action, CgroupSample, ContainerEvent, Level, Stall, Verdict
from dsctl.supervise.rules import Context
from dsctl.supervise.rules.memory import gpu_peak, host_peak, room
from dsctl.supervise.rules.pressure import oom_kills, thrash
from tests.support.samples import GIB, card, checkpoint, host, plan, process, window

#: A plan whose host peak is 60 GiB.
NEEDS_60 = Context(phase_began=1000.0, plan=plan(host_peak=60 * GIB))


def peak(parts: dict[str, Any], context: Context = NEEDS_60, seconds: float = 8) -> Verdict | None:
    return host_peak(window(seconds, lambda t: parts), context)


def holds(gib: float) -> dict[str, Any]:
    return {"processes": (process(anonymous_bytes=int(gib * GIB)),)}


def left(gib: float, **more: Any) -> dict[str, Any]:
    return {"host": host(available_bytes=int(gib * GIB), **more)}


def group(limit_gib: float, current_gib: float, file_gib: float) -> dict[str, Any]:
    return {
        "cgroup": CgroupSample(
            version=2,
            path="/x",
            current_bytes=int(current_gib * GIB),
            limit_bytes=int(limit_gib * GIB),
            file_bytes=int(file_gib * GIB),
            shared_bytes=0,
        )
    }


def test_enough_is_left_and_nothing_is_said() -> None:
    assert peak(holds(10) | left(60)) is None


def test_too_little_is_refused_with_the_numbers_while_it_still_loads() -> None:
    found = peak(holds(10) | left(30))
    assert found is not None
    assert (found.level, found.cause) == (Level.ACT, "memory.host-oom-kill")
    assert found.advice is not None
    assert found.advice.action is Action.REFUSE
    assert "needs 50.0 GiB more of host memory, 27.4 GiB are left" in found.summary
    assert "22.6 GiB will be missing" in found.summary


def test_one_bad_sample_is_a_warning_only() -> None:
    found = host_peak(window(8, lambda t: holds(10) | left(30 if t == 8 else 60)), NEEDS_60)
    assert found is not None
    assert (found.level, found.advice) == (Level.WARN, None)


def test_the_cache_of_finished_files_goes_first_then_our_background_work() -> None:
    short = holds(10) | left(30) | {"checkpoint": checkpoint(5 * GIB, finished=("/a", "/b"))}
    found = peak(short)
    assert found is not None
    assert found.advice is not None
    assert (found.advice.action, found.advice.paths) == (Action.DROP_PAGE_CACHE, ("/a", "/b"))
    dropped = replace(NEEDS_60, dropped=frozenset({"/a", "/b"}), background=True)
    found = peak(short, dropped)
    assert found is not None
    assert found.advice is not None
    assert found.advice.action is Action.PAUSE_BACKGROUND
    found = peak(short, replace(dropped, background=False))
    assert found is not None
    assert found.advice is not None
    assert found.advice.action is Action.REFUSE


def test_scarce_free_memory_drops_cache_before_the_kernel_must_reclaim() -> None:
    scarce = holds(10) | left(100, free_bytes=2 * GIB)
    read = {"checkpoint": checkpoint(5 * GIB, finished=("/a",))}
    found = peak(scarce | read)
    assert found is not None
    assert found.cause is None
    assert found.advice is not None
    assert found.advice.action is Action.DROP_PAGE_CACHE
    assert peak(scarce) is None, "no finished file, nothing to drop"
    assert peak(holds(10) | left(100) | read) is None, "plenty is free, nothing to do"


@pytest.mark.parametrize(
    ("limit", "current", "file", "cause"),
    [
        (30, 12, 2, "container.oom-killed"),
        (30, 29, 19, "container.oom-killed"),
        (100, 99, 89, None),
    ],
)
def test_a_limit_binds_before_the_machine_and_file_cache_gives_way(
    limit: float, current: float, file: float, cause: str | None
) -> None:
    found = peak(holds(10) | left(100) | group(limit, current, file))
    assert (found.cause if found else None) == cause


def test_shared_memory_is_counted_once() -> None:
    both = tuple(process(pid=i, shared_bytes=20 * GIB, anonymous_bytes=GIB) for i in (1, 2))
    now = room(window(4, lambda t: {"processes": both}), NEEDS_60)
    assert now is not None
    assert now.held_bytes == 22 * GIB


def test_beyond_the_plan_its_growth_is_projected_to_the_end_of_the_load() -> None:
    def parts(t: float) -> dict[str, Any]:
        return holds(70 + t) | left(40 - t) | {"checkpoint": checkpoint(t * GIB, 100 * GIB)}

    found = host_peak(window(10, parts), NEEDS_60)
    assert found is not None
    assert found.numbers["wanted_bytes"] == pytest.approx(90 * GIB)


@given(
    held=st.integers(0, 60),
    available=st.integers(0, 120),
    more=st.integers(0, 60),
)
def test_more_memory_never_makes_a_verdict_worse(held: int, available: int, more: int) -> None:
    """Law: with more available memory a start that was let go on is still let go on."""
    poor, rich = peak(holds(held) | left(available)), peak(holds(held) | left(available + more))
    if poor is None:
        assert rich is None


def test_after_the_start_no_peak_is_to_come() -> None:
    serving = window(8, lambda t: holds(10) | left(3), phase=Phase.READY)
    assert host_peak(serving, NEEDS_60) is None


@pytest.mark.parametrize(
    ("used", "level"), [(70, None), (82, None), (94.0, Level.WARN), (94.8, Level.ACT)]
)
def test_a_card_fuller_than_planned_before_its_cache_is_sized(
    used: float, level: Level | None
) -> None:
    parts = {"gpus": (card(memory_used_bytes=int(used * GIB)),)}
    found = gpu_peak(window(4, lambda t: parts), NEEDS_60)
    assert (found.level if found else None) == level
    if found is not None:
        assert "of 95.0 GiB" in found.summary


def thrashing(
    t: float, *, full: float | None = 45.0, swap_mb_s: float = 80, faults: float = 0
) -> dict[str, Any]:
    stall = None if full is None else Stall(some=full, full=full)
    moved = int(t * swap_mb_s * 1e6)
    return {
        "host": host(
            swapped_in_bytes=moved,
            swapped_out_bytes=moved,
            major_faults=int(t * faults),
            memory_stall=stall,
        )
    }


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, True),
        ({"full": 5.0}, False),
        ({"swap_mb_s": 0.0}, False),
        ({"swap_mb_s": 0.0, "faults": 5000.0}, True),
        ({"full": None}, True),
        ({"full": None, "swap_mb_s": 8.0}, False),
    ],
)
def test_thrashing_is_waiting_together_with_pages_that_come_back(
    given_: dict[str, Any], said: bool
) -> None:
    found = thrash(window(20, lambda t: thrashing(t, **given_)), NEEDS_60)
    assert (found is not None) is said
    if found is not None:
        assert found.cause == "memory.swap-thrash"
        assert found.level is Level.ACT


def test_free_memory_says_nothing_about_thrashing() -> None:
    empty = window(20, lambda t: left(0.1, free_bytes=1 << 20))
    assert thrash(empty, NEEDS_60) is None


def test_a_serving_engine_that_thrashes_is_warned_about_not_refused() -> None:
    found = thrash(window(20, thrashing, phase=Phase.READY), NEEDS_60)
    assert found is not None
    assert found.level is Level.WARN


def test_a_short_burst_of_swapping_is_no_thrashing() -> None:
    assert thrash(window(8, thrashing), NEEDS_60) is None
    calm = window(30, lambda t: thrashing(t, full=45.0 if t < 20 else 0.0))
    assert thrash(calm, NEEDS_60) is None


def test_a_kill_in_the_window_names_who_ran_out() -> None:
    def dry(t: float) -> dict[str, Any]:
        return left(0.3, total_bytes=64 * GIB, oom_kills=3 + 2 * (t > 4))

    found = oom_kills(window(10, dry), NEEDS_60)
    assert found is not None
    assert (found.level, found.cause) == (Level.WARN, "memory.host-oom-kill")
    assert found.numbers == {"kills": 2.0, "least_available_bytes": int(0.3 * GIB)}
    assert "2 processes" in found.summary
    assert oom_kills(window(10, lambda t: {"host": host(oom_kills=3)}), NEEDS_60) is None
    limited = CgroupSample(version=2, path="/x", current_bytes=1)
    inside = window(10, lambda t: {"cgroup": limited.model_copy(update={"oom_kills": int(t > 4)})})
    found = oom_kills(inside, NEEDS_60)
    assert found is not None
    assert found.cause == "container.oom-killed"


def test_a_kill_in_somebody_elses_control_group_is_not_blamed_on_the_machine() -> None:
    def elsewhere(t: float) -> dict[str, Any]:
        return left(20, total_bytes=64 * GIB, oom_kills=int(t > 4))

    found = oom_kills(window(10, elsewhere), NEEDS_60)
    assert found is not None
    assert (found.level, found.cause) == (Level.TELL, None)
    assert "not the engine's" in found.summary


def test_a_kill_that_only_the_container_engine_tells_of_is_told_too() -> None:
    oom = ContainerEvent(t=1005.0, action="oom")
    told = window(10, lambda t: {"container_events": (oom,) if t > 5 else ()})
    found = oom_kills(told, NEEDS_60)
    assert found is not None
    assert found.cause == "container.oom-killed"
    later = window(60, lambda t: {"container_events": (oom,)})
    assert oom_kills(later, NEEDS_60) is None


def test_an_old_kill_is_no_news() -> None:
    assert oom_kills(window(60, lambda t: left(0.3, oom_kills=int(t > 4))), NEEDS_60) is None
