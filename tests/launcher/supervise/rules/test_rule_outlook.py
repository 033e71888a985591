"""How far, and how much longer: from bytes, from shards, from the past, from the plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.model.event import Phase
from dsctl.model.sample import Window
from dsctl.supervise.rules import Context, outlook
from tests.support.samples import GIB, checkpoint, log, plan, window

BEGAN = Context(phase_began=1000.0, plan=plan())


def test_a_load_has_bytes_rate_and_time_left() -> None:
    read = window(20, lambda t: {"checkpoint": checkpoint(t * 1e9, 100e9)})
    found = outlook(read, BEGAN)
    assert found is not None
    assert found.done_bytes == 20e9
    assert found.rate_bytes_s == pytest.approx(1e9)
    assert found.left_s == pytest.approx(80)
    assert "18.6 GiB of 93.1 GiB at 954 MiB/s, about 1 min 20 s left" in found.words


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    read = window(
        100, lambda t: {"checkpoint": checkpoint(min(t, 50) * 1e9 + max(t - 50, 0) * 1e8, 100e9)}
    )
    found = outlook(read, BEGAN)
    assert found is not None
    assert found.rate_bytes_s == pytest.approx(1e8)


def test_where_bytes_are_not_known_shards_tell() -> None:
    read = window(
        40, lambda t: {"checkpoint": None, "log": log(shards_done=int(t // 4), shards_total=40)}
    )
    found = outlook(read, BEGAN)
    assert found is not None
    assert found.left_s == pytest.approx(120)


def test_the_past_of_this_machine_goes_before_the_plan() -> None:
    warm = Context(
        phase_began=1000.0,
        plan=plan(),
        expected_s={"warming": 42.0},
        expected_from="history",
    )
    found = outlook(window(10, phase=Phase.WARMING), warm)
    assert found is not None
    assert (found.expected_s, found.expected_from) == (42.0, "history")
    assert found.left_s == pytest.approx(32)
    planned = outlook(window(10, phase=Phase.WARMING), BEGAN)
    assert planned is not None
    assert planned.expected_from == "plan"


def test_without_plan_and_past_it_says_how_long_so_far() -> None:
    found = outlook(window(10, phase=Phase.COMPILING), Context(phase_began=1000.0))
    assert found is not None
    assert found.words == "compiles and captures graphs for 10 s"
    assert outlook(Window(), BEGAN) is None


@given(read=st.lists(st.integers(0, 50), min_size=3, max_size=20))
def test_time_left_is_never_negative(read: list[int]) -> None:
    """Law: however unevenly it reads, what is left is not less than nothing."""
    amounts = [sum(read[:i]) for i in range(len(read) + 1)]
    seen = window(
        2.0 * len(read),
        lambda t: {"checkpoint": checkpoint(amounts[round(t / 2)] * GIB, 1000 * GIB)},
    )
    found = outlook(seen, BEGAN)
    assert found is not None
    assert found.left_s is None or found.left_s >= 0
