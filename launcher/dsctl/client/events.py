"""The events of one streamed answer. `t` is in seconds after the request was sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """The first chunk of the stream arrived, whatever is in it (llama-benchy's `ttfr`)."""

    t: float


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the visible answer; `tokens` as far as the server says, else 1."""

    t: float
    text: str
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of hidden reasoning."""

    t: float
    text: str
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of tool call `index`: its id and name come once, its arguments in pieces."""

    t: float
    index: int
    id: str
    name: str
    arguments: str
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the tokens just sent: (token, log p, ((alternative, log p), ...))."""

    t: float
    entries: tuple[tuple[str, float, tuple[tuple[str, float], ...]], ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids of the tokens just sent, from servers that tell them (vLLM's `return_token_ids`)."""

    t: float
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why the answer ended: `stop`, `length`, `tool_calls`, ..."""

    t: float
    reason: str


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The server's own count of tokens; it may lie, see `Completion.usage_doubt`."""

    t: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reasoning_tokens: int | None


Event = Opened | Text | Reasoning | ToolDelta | Logprobs | TokenIds | Finish | UsageReport
