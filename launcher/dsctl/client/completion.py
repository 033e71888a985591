"""A whole answer, put together from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from dsctl.client.errors import Failure, RequestError
from dsctl.client.events import (
    Event,
    Finish,
    Logprobs,
    Opened,
    Reasoning,
    Text,
    TokenIds,
    ToolDelta,
    UsageReport,
)


@dataclass(frozen=True)
class Usage:
    """Token counts as the server reports them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """A reassembled tool call; `arguments` is the raw text, valid JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One answer. Times are seconds after the request was sent; None: it never came.

    `arrivals` holds (time, tokens) of every chunk that carried tokens. A completion with a
    `failure` holds whatever arrived before it.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Usage | None
    ttfr_s: float | None
    total_s: float
    arrivals: tuple[tuple[float, int], ...]
    failure: Failure | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[tuple[str, float, tuple[tuple[str, float], ...]], ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """When the first token arrived, reasoning or visible."""
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def seen_tokens(self) -> int:
        """Tokens counted on the wire: exact with token ids or logprobs, else one per chunk."""
        return sum(count for _, count in self.arrivals)

    @property
    def tokens(self) -> int:
        """Generated tokens: the server's count unless it is in doubt, else what was seen."""
        if self.usage is None or self.usage_doubt is not None:
            return self.seen_tokens
        return self.usage.completion_tokens

    @property
    def usage_doubt(self) -> str | None:
        """Why the reported token count cannot be right, or None."""
        if self.usage is None or self.failure is not None:
            return None
        said, seen = self.usage.completion_tokens, self.seen_tokens
        if self.token_ids and abs(said - len(self.token_ids)) > 2:
            return f"usage says {said} tokens, {len(self.token_ids)} token ids were sent"
        # One chunk holds at least one token, so fewer tokens than chunks cannot be.
        if said < seen:
            return f"usage says {said} tokens, at least {seen} arrived"
        # A token of text is at least one byte; markup of tool calls and thinking is not shown.
        size = len((self.text + self.reasoning).encode()) + 16
        if not self.tool_calls and said > size:
            return f"usage says {said} tokens for {size - 16} bytes of text"
        return None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens after the first arrival over the time from the first arrival to the last."""
        if len(self.arrivals) < 2:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        if last[0] <= first[0]:
            return None
        return (self.tokens - first[1]) / (last[0] - first[0])

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between neighbouring arrivals (inter-token latency as a reader sees it)."""
        times = [t for t, _ in self.arrivals]
        return tuple(b - a for a, b in pairwise(times))


class Assembler:
    """Collects events into a `Completion`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._arrivals: list[tuple[float, int]] = []
        self._ids: list[int] = []
        self._logprobs: list[tuple[str, float, tuple[tuple[str, float], ...]]] = []
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._opened: float | None = None
        self._last = 0.0

    def add(self, event: Event) -> None:
        """Take one event."""
        self._last = event.t
        match event:
            case Text(t, text, tokens):
                self._text.append(text)
                self._arrived(t, tokens)
            case Reasoning(t, text, tokens):
                self._reasoning.append(text)
                self._arrived(t, tokens)
            case ToolDelta(t, index, call_id, name, arguments, tokens):
                call = self._calls.setdefault(index, ["", "", ""])
                call[0] = call[0] or call_id
                call[1] = call[1] or name
                call[2] += arguments
                self._arrived(t, tokens)
            case TokenIds(_, ids):
                self._ids.extend(ids)
            case Logprobs(_, entries):
                self._logprobs.extend(entries)
            case Finish(_, reason):
                self._finish = reason
            case UsageReport(_, prompt, completion, cached, thought):
                self._usage = Usage(prompt, completion, cached, thought)
            case Opened(t):
                self._opened = t

    def _arrived(self, t: float, tokens: int) -> None:
        if tokens:
            self._arrivals.append((t, tokens))

    def result(self, total_s: float | None = None, failure: Failure | None = None) -> Completion:
        """The answer so far; `total_s` defaults to the time of the last event."""
        calls = tuple(ToolCall(*self._calls[index]) for index in sorted(self._calls))
        return Completion(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish_reason=self._finish,
            usage=self._usage,
            ttfr_s=self._opened,
            total_s=self._last if total_s is None else total_s,
            arrivals=tuple(self._arrivals),
            failure=failure,
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
        )


def collect(events: Iterable[Event], watch: Callable[[Event], None] | None = None) -> Completion:
    """The completion that the events make; a failed request gives one with its `failure` set."""
    assembler = Assembler()
    try:
        for event in events:
            assembler.add(event)
            if watch is not None:
                watch(event)
    except RequestError as error:
        return assembler.result(failure=error.failure)
    return assembler.result()
