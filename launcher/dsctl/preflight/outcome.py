"""What a check says: good, bad with a remedy, or that it could not look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsctl.model.finding import Status

_GIB = 1 << 30
_ORDER = (Status.FAIL, Status.WARN, Status.SKIP, Status.PASS)


@dataclass(frozen=True)
class Outcome:
    """A finding without its id."""

    status: Status
    summary: str
    detail: str = ""
    remedy: str = ""


class SkipError(Exception):
    """Something that a check needs is not there; the message is the reason."""


def good(summary: str, detail: str = "") -> Outcome:
    """Nothing to do."""
    return Outcome(Status.PASS, summary, detail)


def warn(summary: str, remedy: str, detail: str = "") -> Outcome:
    """It will start, and hurt."""
    return Outcome(Status.WARN, summary, detail, remedy)


def fail(summary: str, remedy: str, detail: str = "") -> Outcome:
    """It will not start, or must not."""
    return Outcome(Status.FAIL, summary, detail, remedy)


def worst(outcomes: Iterable[Outcome], otherwise: Outcome) -> Outcome:
    """The worst of several outcomes (one per GPU, say), the summaries of the others below it."""
    found = sorted(outcomes, key=lambda o: _ORDER.index(o.status))
    if not found:
        return otherwise
    first, bad = found[0], [o for o in found[1:] if o.status in (Status.FAIL, Status.WARN)]
    if not bad:
        return first
    detail = "\n".join(filter(None, [first.detail, *(o.summary for o in bad)]))
    return Outcome(first.status, first.summary, detail, first.remedy)


def gib(value: float) -> str:
    """Bytes for people."""
    if abs(value) < _GIB / 10:
        return f"{value / (1 << 20):.0f} MiB"
    return f"{value / _GIB:.1f} GiB" if abs(value) < 100 * _GIB else f"{value / _GIB:.0f} GiB"
