"""One thing judged: as bad as the policy says, or good. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsctl.model.finding import Finding, Status
from dsctl.vet.policy import Weight

_SHOWN = 20


def finding(id: str, weight: Weight, bad: str, good: str, items: Iterable[str] = ()) -> Finding:
    """The finding of one thing judged: as bad as its weight where there is something bad."""
    listed = list(items)
    if not bad:
        return Finding(id=id, status=Status.PASS, summary=good, detail=_listed(listed))
    detail = f"{weight.why}\n{_listed(listed)}" if listed else weight.why
    return Finding(
        id=id, status=weight.status, summary=bad, detail=detail.strip(), remedy=weight.remedy
    )


def _listed(items: Sequence[str]) -> str:
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return "\n".join([*items[:_SHOWN], *more])
