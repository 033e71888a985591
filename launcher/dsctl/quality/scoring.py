"""The arithmetic of scores. Pure.

A case: the weighted mean of its dimensions, then the lowest cap that applies. A suite: the mean of
its cases by their weights. Both are tested against a published table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsctl.quality.schema import Caps, Case, Dimension, Suite


@dataclass(frozen=True)
class CaseScore:
    """A case's score (0..100) before and after the caps, and which cap applied."""

    case: str
    raw: float
    final: float
    capped_by: str | None
    missing: tuple[str, ...] = ()

    @property
    def provisional(self) -> bool:
        """Some dimension has no grade yet: the raw score is the mean of the others."""
        return bool(self.missing)


def case_raw(dimensions: Sequence[Dimension], grades: Mapping[str, float]) -> float:
    """Weighted mean of the graded dimensions.

    Raises:
        ValueError: none is graded.
    """
    graded = [(d.weight, grades[d.id]) for d in dimensions if d.id in grades]
    if not graded:
        raise ValueError("no dimension is graded")
    return sum(w * g for w, g in graded) / sum(w for w, _ in graded)


def apply_caps(
    raw: float, caps: Caps, *, fatal: bool, hard_loop: bool, exhausted: bool
) -> tuple[float, str | None]:
    """(final score, the cap that lowered it or None)."""
    applying = [
        (cap, name)
        for cap, name, holds in (
            (caps.fatal, "fatal defect", fatal),
            (caps.hard_loop, "hard loop", hard_loop),
            (caps.exhaustion, "length exhaustion", exhausted),
        )
        if holds
    ]
    if not applying:
        return raw, None
    cap, name = min(applying)
    return (cap, name) if raw > cap else (raw, None)


def weighted_score(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Mean of the cases' scores by their weights, over the cases that have a score.

    Raises:
        ValueError: no case has one.
    """
    total = sum(weights[case] for case in scores)
    if not total:
        raise ValueError("no case has a score")
    return sum(weights[case] * score for case, score in scores.items()) / total


def case_weights(cases: Sequence[Case]) -> dict[str, float]:
    """Weights of cases by id."""
    return {case.id: case.weight for case in cases}


def score_case(
    suite: Suite,
    case: Case,
    grades: Mapping[str, float],
    *,
    fatal: bool,
    hard_loop: bool,
    exhausted: bool,
) -> CaseScore:
    """The score of one graded case."""
    assert suite.caps is not None
    raw = case_raw(suite.dimensions, grades)
    final, cap = apply_caps(raw, suite.caps, fatal=fatal, hard_loop=hard_loop, exhausted=exhausted)
    missing = tuple(d.id for d in suite.dimensions if d.id not in grades)
    return CaseScore(case.id, raw, final, cap, missing)


def aggregate_rate(tokens: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Sum of tokens over the sum of wall times (requests one after another)."""
    total = sum(seconds)
    return sum(tokens) / total if total > 0 else None
