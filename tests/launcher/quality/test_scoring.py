"""The arithmetic of scores against a published table of this protocol, and its laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.quality.schema import Caps, Dimension
from dsctl.quality.scoring import aggregate_rate, apply_caps, case_raw, weighted_score

CAPS = Caps(fatal=35, hard_loop=20, exhaustion=10)
WEIGHTS = dict(
    zip(
        ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8"],
        [14, 12, 14, 14, 16, 10, 10, 10],
        strict=True,
    )
)
RAW = dict(zip(WEIGHTS, [96, 98, 100, 91, 86, 100, 100, 100], strict=True))
TOKENS = [2320, 1064, 3870, 10159, 8141, 405, 1402, 528, 563]
SECONDS = [63.23, 28.45, 99.53, 247.98, 198.59, 12.45, 35.82, 14.52, 14.74]


def test_the_published_table_comes_out() -> None:
    assert weighted_score(RAW, WEIGHTS) == pytest.approx(95.70, abs=0.005)
    final = {
        case: apply_caps(raw, CAPS, fatal=case == "C5", hard_loop=False, exhausted=False)[0]
        for case, raw in RAW.items()
    }
    assert final["C5"] == 35
    assert weighted_score(final, WEIGHTS) == pytest.approx(87.54, abs=0.005)


def test_the_published_speed_comes_out() -> None:
    assert sum(TOKENS) == 28452
    assert sum(SECONDS) == pytest.approx(715.31)
    assert aggregate_rate(TOKENS, SECONDS) == pytest.approx(39.78, abs=0.005)
    rates = [t / s for t, s in zip(TOKENS, SECONDS, strict=True)]
    assert (min(rates), max(rates)) == (
        pytest.approx(32.53, abs=0.01),
        pytest.approx(40.99, abs=0.01),
    )


@given(st.floats(0, 100), st.booleans(), st.booleans(), st.booleans())
def test_the_lowest_applying_cap_holds_and_never_raises_a_score(
    raw: float, fatal: bool, loop: bool, exhausted: bool
) -> None:
    final, by = apply_caps(raw, CAPS, fatal=fatal, hard_loop=loop, exhausted=exhausted)
    limit = min([100.0] + [35.0] * fatal + [20.0] * loop + [10.0] * exhausted)
    assert final == min(raw, limit)
    assert (by is None) == (final == raw)


@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 100)), min_size=1, max_size=10))
def test_a_case_lies_between_its_worst_and_best_dimension(pairs: list[tuple[float, float]]) -> None:
    dimensions = [Dimension(id=str(i), weight=w, about="") for i, (w, _) in enumerate(pairs)]
    grades = {str(i): g for i, (_, g) in enumerate(pairs)}
    low, high = min(grades.values()), max(grades.values())
    assert low - 1e-9 <= case_raw(dimensions, grades) <= high + 1e-9
