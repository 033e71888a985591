"""What can go wrong with a request, told apart: each kind means something else to a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dsctl.errors import DsctlError


class FailureKind(StrEnum):
    """Kinds of failed requests."""

    UNREACHABLE = "unreachable"  # nothing listens, or it does not speak HTTP
    REFUSED = "refused"  # the server answered with an HTTP error
    SILENT = "silent"  # no byte for longer than the silence limit
    BROKEN = "broken"  # the connection ended in the middle of an answer
    PROTOCOL = "protocol"  # bytes that are not a stream of chat chunks
    ENGINE = "engine"  # an error object inside the stream


@dataclass(frozen=True)
class Failure:
    """One failed request, as it is stored: the kind, and what was said, in one line."""

    kind: FailureKind
    message: str
    status: int | None = None


class RequestError(DsctlError):
    """A request failed. `failure` tells how; what had arrived is not lost (see `collect`)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, remedy=_REMEDIES[failure.kind])
        self.failure = failure


_REMEDIES = {
    FailureKind.UNREACHABLE: "see `dsctl status`, or check the address after --endpoint",
    FailureKind.REFUSED: "the server says why; check the model's name, the key and the parameters",
    FailureKind.SILENT: "see `dsctl status`: the engine may be stalled; or raise --timeout",
    FailureKind.BROKEN: "the engine or a proxy died in the middle: see `dsctl logs`",
    FailureKind.PROTOCOL: "is this an OpenAI-compatible server? try `curl ADDRESS/models`",
    FailureKind.ENGINE: "see `dsctl logs` and `dsctl diagnose`",
}
