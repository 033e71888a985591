"""Two runs of one suite, case by case, with paired statistics. Says what differs, never why."""

from __future__ import annotations

from itertools import product

from dsctl.errors import NotGoodError
from dsctl.measure.statistics import Interval, bootstrap_mean
from dsctl.model.base import Value
from dsctl.quality.results import SuiteResult


class CaseChange(Value):
    """One case in both runs."""

    case: str
    title: str
    before: float
    after: float
    outcome_before: str
    outcome_after: str
    tokens_before: int
    tokens_after: int
    rate_before: float | None
    rate_after: float | None

    @property
    def delta(self) -> float:
        """Change of the score."""
        return self.after - self.before


class Comparison(Value):
    """The comparison. `p_value`: chance of a mean change at least this large if the sign of every
    case's change were a coin toss (exact paired sign-flip test); None with no change at all."""

    suite: str
    changes: tuple[CaseChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    mean_delta: float
    interval: Interval | None
    p_value: float | None
    different_conditions: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence, careful about what one run of each can say."""
        changed = [c for c in self.changes if c.delta]
        if not changed:
            return f"No score differs in {len(self.changes)} cases."
        sure = self.p_value is not None and self.p_value < 0.05
        what = "differ by more than chance in the cases alone" if sure else "do not differ clearly"
        return (
            f"{len(changed)} of {len(self.changes)} cases changed, by {self.mean_delta:+.2f} on "
            f"average (p = {self.p_value:.3f}): the runs {what}. Answers are sampled, so another "
            "run of the same configuration differs too; this names no cause."
        )


def compare(before: SuiteResult, after: SuiteResult) -> Comparison:
    """Compare two runs.

    Raises:
        NotGoodError: different suites, or no case scored in both.
    """
    if before.suite_digest != after.suite_digest:
        raise NotGoodError(
            f"these are different suites: {before.suite} and {after.suite}",
            remedy="compare runs of one suite; a changed suite is another suite",
        )
    first = {c.case: c for c in before.cases if c.final is not None}
    second = {c.case: c for c in after.cases if c.final is not None}
    both = [name for name in first if name in second]
    if not both:
        raise NotGoodError(
            "no case has a score in both runs", remedy="grade and lock both: `dsctl quality grade`"
        )
    changes = tuple(
        CaseChange(
            case=name,
            title=first[name].title,
            before=first[name].final or 0.0,
            after=second[name].final or 0.0,
            outcome_before=first[name].outcome,
            outcome_after=second[name].outcome,
            tokens_before=first[name].tokens,
            tokens_after=second[name].tokens,
            rate_before=first[name].rate_tok_s,
            rate_after=second[name].rate_tok_s,
        )
        for name in both
    )
    deltas = [c.delta for c in changes]
    return Comparison(
        suite=before.suite,
        changes=changes,
        only_before=tuple(n for n in first if n not in second),
        only_after=tuple(n for n in second if n not in first),
        mean_delta=sum(deltas) / len(deltas),
        interval=bootstrap_mean(deltas) if len(deltas) > 1 else None,
        p_value=sign_flip_p(deltas),
        different_conditions=_different(before, after),
    )


def sign_flip_p(deltas: list[float]) -> float | None:
    """Two-sided exact sign-flip test of a mean of zero; zeros carry no information.

    Above 16 changes the exact 2^n is replaced by 20,000 seeded draws.
    """
    changed = [d for d in deltas if d]
    if not changed:
        return None
    observed = abs(sum(changed)) - 1e-9
    if len(changed) <= 16:
        sums = [
            abs(sum(s * d for s, d in zip(signs, changed, strict=True)))
            for signs in product((1, -1), repeat=len(changed))
        ]
        return sum(total >= observed for total in sums) / len(sums)
    import random

    rng = random.Random(0)
    draws = 20_000
    hits = sum(
        abs(sum(d if rng.random() < 0.5 else -d for d in changed)) >= observed for _ in range(draws)
    )
    return (hits + 1) / (draws + 1)


def _different(before: SuiteResult, after: SuiteResult) -> tuple[str, ...]:
    a = before.conditions.model_dump(mode="json", exclude={"facts"})
    b = after.conditions.model_dump(mode="json", exclude={"facts"})
    return tuple(f"{key}: {a[key]} → {b[key]}" for key in a if a[key] != b[key])
