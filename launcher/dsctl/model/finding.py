"""What a check found, and the report that gathers all findings of one preflight."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import model_validator

from dsctl.model.base import Value


class Status(StrEnum):
    """Outcome of one check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Finding(Value):
    """One result of one check.

    `remedy` is what a person can type or do; every warn and fail has one. A skip says in `detail`
    what could not be read.
    """

    id: str
    status: Status
    summary: str
    detail: str = ""
    remedy: str = ""

    @model_validator(mode="after")
    def _bad_news_has_a_remedy(self) -> Finding:
        if self.status in (Status.WARN, Status.FAIL) and not self.remedy:
            raise ValueError(f"finding {self.id}: a {self.status} needs a remedy")
        return self


class Report(Value):
    """All findings of one preflight."""

    profile: str | None
    verdict: Status
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(f for f in self.findings if f.status is Status.FAIL)


_WORST_FIRST = (Status.FAIL, Status.WARN, Status.PASS, Status.SKIP)


def report(profile: str | None, findings: Iterable[Finding], ignore: Iterable[str] = ()) -> Report:
    """Gather findings, worst first; an ignored id turns its fail into a warn."""
    ignored = frozenset(ignore)
    seen = [
        f.model_copy(update={"status": Status.WARN, "summary": f"{f.summary} (ignored)"})
        if f.id in ignored and f.status is Status.FAIL
        else f
        for f in findings
    ]
    seen.sort(key=lambda f: _WORST_FIRST.index(f.status))
    statuses = {f.status for f in seen}
    verdict = next((s for s in (Status.FAIL, Status.WARN) if s in statuses), Status.PASS)
    return Report(profile=profile, verdict=verdict, findings=tuple(seen))
