"""The grader that is a program: it judges what is decidable and leaves the rest to others."""

from __future__ import annotations

from collections.abc import Sequence

from dsctl.quality.answers import Answer
from dsctl.quality.checks import CheckResult, run_check
from dsctl.quality.grades import Grade
from dsctl.quality.loops import LoopKind
from dsctl.quality.schema import Case, RubricItem

_LOOP_SCORE = {LoopKind.NONE: 100.0, LoopKind.SUSPECTED: 60.0, LoopKind.CONFIRMED: 0.0}


def check_case(case: Case, answers: Sequence[Answer]) -> list[CheckResult]:
    """The case's own checks on its last answer, in their order."""
    return [run_check(check, answers[-1]) for check in case.checks]


def case_score(case: Case, answers: Sequence[Answer]) -> float:
    """Share of the checks that hold, 0..100; a case of a suite that programs decide alone."""
    results = check_case(case, answers)
    return 100.0 * sum(r.ok for r in results) / len(results)


def item_found(item: RubricItem, answers: Sequence[Answer]) -> bool | None:
    """Whether a required conclusion is in the answer; None: a program cannot tell."""
    if not item.checks:
        return None
    if item.turn is not None and item.turn > len(answers):
        return False
    answer = answers[item.turn - 1] if item.turn is not None else answers[-1]
    return all(run_check(check, answer).ok for check in item.checks)


def grade_by_program(label: str, case: Case, answers: Sequence[Answer]) -> Grade:
    """Rubric items that can be looked for, correctness from them, and the loop dimension.

    Finding words is a weak sign of a right conclusion: hence the lowest precedence, and no word on
    fatal defects.
    """
    found = {item.id: item_found(item, answers) for item in case.rubric}
    items = {name: value for name, value in found.items() if value is not None}
    dimensions = {"loop_behavior": _LOOP_SCORE[_worst_loop(answers)]}
    if items:
        dimensions["correctness"] = 100.0 * sum(items.values()) / len(items)
    return Grade(label=label, grader="program", dimensions=dimensions, items=items)


def _worst_loop(answers: Sequence[Answer]) -> LoopKind:
    kinds = [LoopKind(answer.loop_kind) for answer in answers]
    return min(kinds, key=lambda kind: _LOOP_SCORE[kind])
