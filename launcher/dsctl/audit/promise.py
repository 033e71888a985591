"""One promise with how it was tried, and the report of them all."""

from __future__ import annotations

from dsctl.model.base import Value


class Promise(Value):
    """What is promised, how it was tried, whether it held; `evidence` is what was seen.

    `held` None: it could not be tried here, `evidence` says why.
    """

    id: str
    container: str
    promise: str
    how: str
    held: bool | None
    evidence: str = ""


class AuditReport(Value):
    """All promises of a deployment. `held`: none was broken."""

    profile: str | None
    engine_container: str
    gateway_container: str | None
    promises: tuple[Promise, ...]

    @property
    def broken(self) -> tuple[Promise, ...]:
        """The promises that did not hold."""
        return tuple(p for p in self.promises if p.held is False)

    @property
    def held(self) -> bool:
        """Whether every promise that could be tried held."""
        return not self.broken
