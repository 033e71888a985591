"""A run's results: scores, outcomes and speeds in one value. Pure over what is on disk."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dsctl.measure.conditions import Conditions
from dsctl.model.base import Value
from dsctl.quality.answers import CaseRecord, Outcome
from dsctl.quality.grades import Combined
from dsctl.quality.programs import case_score, check_case
from dsctl.quality.rundir import Manifest
from dsctl.quality.schema import Case, Suite
from dsctl.quality.scoring import (
    CaseScore,
    aggregate_rate,
    case_weights,
    score_case,
    weighted_score,
)


class CaseResult(Value):
    """One case: outcome and speed always, a score when it is decided or graded."""

    case: str
    title: str
    tests: str
    weight: float
    outcome: str
    raw: float | None = None
    final: float | None = None
    capped_by: str | None = None
    provisional: bool = False
    tokens: int
    total_s: float
    rate_tok_s: float | None
    ttft_s: float | None
    turn_tokens: tuple[int, ...] = ()
    turn_total_s: tuple[float, ...] = ()
    finish: tuple[str | None, ...] = ()
    loop: str = ""
    usage_doubt: str | None = None
    problems: tuple[str, ...] = ()
    dimensions: dict[str, float] = Field(default_factory=dict)
    graded_by: dict[str, str] = Field(default_factory=dict)
    items: dict[str, bool] = Field(default_factory=dict)
    fatal: bool | None = None
    fatal_evidence: str = ""
    notes: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


class SuiteResult(Value):
    """A whole run. `raw`, `final`: case-weighted scores, None when nothing is graded."""

    suite: str
    suite_digest: str
    title: str
    about: str
    graded: bool
    conditions: Conditions
    created: float
    command: str
    cases: tuple[CaseResult, ...]
    not_asked: dict[str, str] = Field(default_factory=dict)
    raw: float | None = None
    final: float | None = None
    dimensions: dict[str, float] = Field(default_factory=dict)
    requests: int
    tokens: int
    total_s: float
    rate_tok_s: float | None
    outcomes: dict[str, int]

    @property
    def provisional(self) -> bool:
        """Something is missing that a final result would have."""
        return bool(self.not_asked) or any(c.final is None or c.provisional for c in self.cases)


def results_of(
    suite: Suite,
    manifest: Manifest,
    records: Mapping[str, CaseRecord],
    grades: Mapping[str, Combined] | None = None,
) -> SuiteResult:
    """The results of a run; `grades` by case, for suites that are graded."""
    cases, not_asked = [], dict(manifest.skipped)
    for case in suite.cases:
        record = records.get(case.id)
        if record is None:
            not_asked.setdefault(case.id, "not asked yet")
            continue
        cases.append(_case(suite, case, record, (grades or {}).get(case.id)))
    answers = [a for r in records.values() for a in r.answers]
    weights = case_weights(suite.cases)
    raw = {c.case: c.raw for c in cases if c.raw is not None}
    final = {c.case: c.final for c in cases if c.final is not None}
    return SuiteResult(
        suite=suite.name,
        suite_digest=suite.digest,
        title=suite.title,
        about=suite.about,
        graded=suite.is_graded,
        conditions=manifest.conditions,
        created=manifest.created,
        command=manifest.command,
        cases=tuple(cases),
        not_asked=not_asked,
        raw=weighted_score(raw, weights) if raw else None,
        final=weighted_score(final, weights) if final else None,
        dimensions=_dimension_means(suite, cases, weights),
        requests=len(answers),
        tokens=sum(a.tokens for a in answers),
        total_s=sum(a.total_s for a in answers),
        rate_tok_s=aggregate_rate([a.tokens for a in answers], [a.total_s for a in answers]),
        outcomes={str(o): n for o in Outcome if (n := sum(a.outcome is o for a in answers))},
    )


def _case(suite: Suite, case: Case, record: CaseRecord, grade: Combined | None) -> CaseResult:
    answers = record.answers
    outcome = _worst([a.outcome for a in answers])
    score = _score(suite, case, record, grade)
    tokens, seconds = [a.tokens for a in answers], [a.total_s for a in answers]
    problems = [a.failure for a in answers if a.failure]
    if not suite.is_graded and record.complete:
        problems += [r.why for r in check_case(case, answers) if not r.ok]
    return CaseResult(
        case=case.id,
        title=case.title,
        tests=case.tests,
        weight=case.weight,
        outcome=outcome,
        raw=score.raw if score else None,
        final=score.final if score else None,
        capped_by=score.capped_by if score else None,
        provisional=bool(score and score.provisional),
        tokens=sum(tokens),
        total_s=sum(seconds),
        rate_tok_s=aggregate_rate(tokens, seconds),
        ttft_s=answers[0].ttft_s,
        turn_tokens=tuple(tokens),
        turn_total_s=tuple(seconds),
        finish=tuple(a.finish_reason for a in answers),
        loop=next((a.loop for a in answers if a.loop), ""),
        usage_doubt=next((a.usage_doubt for a in answers if a.usage_doubt), None),
        problems=tuple(problems),
        dimensions=grade.dimensions if grade else {},
        graded_by=grade.by if grade else {},
        items=grade.items if grade else {},
        fatal=grade.fatal if grade and grade.fatal_by else None,
        fatal_evidence=grade.fatal_evidence if grade else "",
        notes=grade.notes if grade else (),
        disagreements=grade.disagreements if grade else (),
    )


def _score(
    suite: Suite, case: Case, record: CaseRecord, grade: Combined | None
) -> CaseScore | None:
    if not record.complete:
        return None
    if not suite.is_graded:
        value = case_score(case, record.answers)
        return CaseScore(case.id, value, value, None)
    if grade is None or not grade.dimensions:
        return None
    outcomes = [a.outcome for a in record.answers]
    # Exhaustion caps an answer that never came; one that was cut but is usable is graded as it is.
    exhausted = any(a.outcome is Outcome.LENGTH and not a.text.strip() for a in record.answers)
    return score_case(
        suite,
        case,
        grade.dimensions,
        fatal=grade.fatal,
        hard_loop=Outcome.LOOP in outcomes,
        exhausted=exhausted,
    )


_ORDER = (
    Outcome.FAILED,
    Outcome.LOOP,
    Outcome.LENGTH,
    Outcome.EMPTY,
    Outcome.EMPTY_THINKING,
    Outcome.STOP,
)


def _worst(outcomes: list[Outcome]) -> Outcome:
    return min(outcomes, key=_ORDER.index)


def _dimension_means(
    suite: Suite, cases: list[CaseResult], weights: Mapping[str, float]
) -> dict[str, float]:
    means = {}
    for dimension in suite.dimensions:
        scores = {c.case: c.dimensions[dimension.id] for c in cases if dimension.id in c.dimensions}
        if scores:
            means[dimension.id] = weighted_score(scores, weights)
    return means
