"""Grades of one item by one grader, and how several graders are put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import Field, field_validator

from dsctl.model.base import Value

#: Graders differ in a dimension when they are further apart than this.
DISAGREEMENT = 15.0

#: Whose word counts first. Programs decide only what is decidable, so a person may overrule them.
PRECEDENCE = ("person", "judge", "program")


class Grade(Value):
    """What one grader says about one anonymous answer.

    `dimensions`: scores 0..100 of those it judged. `items`: rubric items found (true) or not.
    `fatal`: None when it did not judge that. `samples`: a judge's repeated scores by dimension.
    """

    label: str
    grader: str
    dimensions: dict[str, float] = Field(default_factory=dict)
    items: dict[str, bool] = Field(default_factory=dict)
    fatal: bool | None = None
    fatal_evidence: str = ""
    notes: str = ""
    samples: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    fatal_samples: tuple[bool, ...] = ()

    @field_validator("dimensions")
    @classmethod
    def _in_range(cls, value: dict[str, float]) -> dict[str, float]:
        for name, score in value.items():
            if not 0 <= score <= 100:
                raise ValueError(f"{name}: {score} is not between 0 and 100")
        return value


@dataclass(frozen=True)
class Combined:
    """One item graded by all: each dimension with whose score it is, and where they differ."""

    dimensions: dict[str, float]
    by: dict[str, str]
    items: dict[str, bool]
    fatal: bool
    fatal_by: str | None
    fatal_evidence: str
    notes: tuple[str, ...]
    disagreements: tuple[str, ...]


def combine(grades: Sequence[Grade]) -> Combined:
    """Put the grades of one item together by `PRECEDENCE`."""
    ordered = sorted(grades, key=lambda g: _rank(g.grader))
    dimensions: dict[str, float] = {}
    by: dict[str, str] = {}
    items: dict[str, bool] = {}
    for grade in ordered:
        for name, score in grade.dimensions.items():
            if name not in dimensions:
                dimensions[name], by[name] = score, grade.grader
        for name, found in grade.items.items():
            items.setdefault(name, found)
    judged = next((g for g in ordered if g.fatal is not None), None)
    return Combined(
        dimensions=dimensions,
        by=by,
        items=items,
        fatal=bool(judged and judged.fatal),
        fatal_by=judged.grader if judged else None,
        fatal_evidence=judged.fatal_evidence if judged and judged.fatal else "",
        notes=tuple(f"{g.grader}: {g.notes}" for g in ordered if g.notes),
        disagreements=tuple(_disagreements(ordered)),
    )


def _rank(grader: str) -> int:
    kind = grader.split(":")[0]
    return PRECEDENCE.index(kind) if kind in PRECEDENCE else len(PRECEDENCE)


def _disagreements(grades: Sequence[Grade]) -> list[str]:
    found = []
    names = sorted({name for g in grades for name in g.dimensions})
    for name in names:
        said = {g.grader: g.dimensions[name] for g in grades if name in g.dimensions}
        if len(said) > 1 and max(said.values()) - min(said.values()) > DISAGREEMENT:
            found.append(f"{name}: " + ", ".join(f"{who} {score:g}" for who, score in said.items()))
    for grade in grades:
        for name, scores in grade.samples.items():
            if max(scores) - min(scores) > DISAGREEMENT:
                shown = ", ".join(f"{score:g}" for score in scores)
                found.append(f"{name}: {grade.grader} by itself said {shown}")
        if len(set(grade.fatal_samples)) > 1:
            yes, of = sum(grade.fatal_samples), len(grade.fatal_samples)
            found.append(f"fatal defect: {grade.grader} said yes {yes} times of {of}")
    fatal = {g.grader: g.fatal for g in grades if g.fatal is not None}
    if len(set(fatal.values())) > 1:
        said_text = ", ".join(f"{who} {'yes' if what else 'no'}" for who, what in fatal.items())
        found.append(f"fatal defect: {said_text}")
    return found


def merge_samples(label: str, grader: str, samples: Sequence[Grade]) -> Grade:
    """Repeated grades of one judge as one: medians, and a fatal defect if most say so.

    A tie counts as fatal: a missed deployment-critical defect is worse than a second look.
    """
    names = sorted({name for s in samples for name in s.dimensions})
    scores: Mapping[str, tuple[float, ...]] = {
        name: tuple(s.dimensions[name] for s in samples if name in s.dimensions) for name in names
    }
    votes = tuple(s.fatal for s in samples if s.fatal is not None)
    fatal = sum(votes) * 2 >= len(votes) if votes else None
    items = {name for s in samples for name in s.items}
    return Grade(
        label=label,
        grader=grader,
        dimensions={name: float(median(values)) for name, values in scores.items()},
        items={
            name: sum(s.items.get(name, False) for s in samples) * 2 > len(samples)
            for name in sorted(items)
        },
        fatal=fatal,
        fatal_evidence=next((s.fatal_evidence for s in samples if s.fatal), "") if fatal else "",
        notes=next((s.notes for s in samples if s.notes), ""),
        samples=dict(scores),
        fatal_samples=votes,
    )
