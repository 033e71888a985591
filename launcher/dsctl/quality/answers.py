"""A stored answer, and what became of the request."""

from __future__ import annotations

from enum import StrEnum

from dsctl.model.base import Value


class Outcome(StrEnum):
    """How a request ended; each means something else to a grader."""

    STOP = "stop"  # the model ended its answer (also: with tool calls)
    LENGTH = "length"  # max_tokens used up
    LOOP = "loop"  # a confirmed hard loop: stopped by us, or found in what came
    EMPTY_THINKING = "empty-thinking"  # thinking was asked for and did not happen
    EMPTY = "empty"  # ended without any answer
    FAILED = "failed"  # the request failed


class StoredCall(Value):
    """A tool call as it came."""

    id: str
    name: str
    arguments: str


class Answer(Value):
    """One answer of one turn. Times in seconds after the request was sent.

    `arrivals` are (time, tokens) of every chunk. `tokens` is the server's count unless
    `usage_doubt` says why it cannot be right.
    """

    text: str
    reasoning: str = ""
    tool_calls: tuple[StoredCall, ...] = ()
    finish_reason: str | None = None
    outcome: Outcome
    loop: str = ""
    loop_kind: str = "none"
    failure: str | None = None
    tokens: int = 0
    reasoning_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    usage_doubt: str | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    arrivals: tuple[tuple[float, int], ...] = ()

    @property
    def rate_tok_s(self) -> float | None:
        """Generated tokens over the wall time of the whole request (the seed's effective speed)."""
        return self.tokens / self.total_s if self.total_s > 0 and self.tokens else None


class CaseRecord(Value):
    """Everything kept of one case: the messages as sent and one answer for each turn."""

    case: str
    suite: str
    started: float
    messages: tuple[dict[str, object], ...]
    request: dict[str, object]
    answers: tuple[Answer, ...]

    @property
    def complete(self) -> bool:
        """Every turn was answered, for better or worse; a failed request is asked again."""
        return bool(self.answers) and all(a.outcome is not Outcome.FAILED for a in self.answers)
