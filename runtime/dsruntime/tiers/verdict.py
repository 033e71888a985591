"""What a worker tells the scheduler of a step's requests: which failed, and which are degraded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dsruntime.tiers.steps import StepReport

ATTRIBUTE = "dsruntime_verdict"


@dataclass(frozen=True)
class Verdict:
    """By request id.

    Attributes:
        failed: whose result must not be used. why: the first cause.
        degraded: experts left out.
    """

    failed: frozenset[str] = frozenset()
    why: str = ""
    degraded: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.failed or self.degraded)


def is_decode(scheduler_output: Any) -> bool:
    """Whether every request of a step has one token of its own, and drafts."""
    drafts = scheduler_output.scheduled_spec_decode_tokens
    scheduled = scheduler_output.num_scheduled_tokens
    return bool(scheduled) and all(
        count == 1 + len(drafts.get(name, ())) for name, count in scheduled.items()
    )


def verdict_of(report: StepReport, order: Sequence[tuple[str, int]]) -> Verdict:
    """From tokens to requests.

    Args:
        order: (request, number of its tokens) as they lie in the batch, one after the other.
    """
    owners = [name for name, count in order for _ in range(count)]
    degraded: dict[str, int] = {}
    for token, experts in report.left_out:
        if token < len(owners):  # beyond are tokens that only fill a graph's batch
            degraded[owners[token]] = degraded.get(owners[token], 0) + experts
    failed = frozenset(owners[token] for token in report.wrong if token < len(owners))
    return Verdict(failed, report.why, degraded)


def attach(output: Any, verdict: Verdict) -> None:
    """Put it on a step's output, or on the one that an asynchronous output will give."""
    setattr(getattr(output, "_model_runner_output", output), ATTRIBUTE, verdict)
