"""What the scripted endpoint is told to send, and what it has sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

#: cut: connection closed after `fault_after` tokens. no-done: all tokens, but no finish, usage or
#: [DONE]. garbage: a line that is not JSON. error: an error object in the stream. refuse: HTTP 400.
Fault = Literal["cut", "no-done", "garbage", "error", "refuse"]


def words(text: str) -> tuple[str, ...]:
    """Text as tokens: each word with the white space before it."""
    return tuple(re.findall(r"\s*\S+|\s+$", text))


@dataclass(frozen=True)
class Reply:
    """One scripted answer. Token i leaves `ttft_s + i * gap_s` after the request was read.

    `tool_calls`: (name, arguments) pairs, sent in pieces of `split` characters. `batch` tokens go
    into one chunk, as a drafting engine sends them; `jitter` adds to single gaps by index.
    """

    text: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    tool_calls: tuple[tuple[str, str], ...] = ()
    ttft_s: float = 0.0
    gap_s: float = 0.0
    batch: int = 1
    split: int = 7
    jitter: dict[int, float] = field(default_factory=dict)
    finish: str = "stop"
    usage: dict[str, Any] | None = None
    prompt_tokens: int = 10
    cached_tokens: int | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None
    token_ids: bool = True
    fault: Fault | None = None
    fault_after: int = 0
    reasoning_key: str = "reasoning_content"

    def deltas(self) -> list[dict[str, Any]]:
        """The deltas of all chunks that carry tokens, in order."""
        parts: list[dict[str, Any]] = []
        for key, tokens in ((self.reasoning_key, self.reasoning), ("content", self.text)):
            for start in range(0, len(tokens), self.batch):
                group = tokens[start : start + self.batch]
                parts.append({"n": len(group), "delta": {key: "".join(group)}})
        for index, (name, arguments) in enumerate(self.tool_calls):
            head = {"index": index, "id": f"call-{index}", "type": "function"}
            parts.append(_call({**head, "function": {"name": name, "arguments": ""}}))
            for start in range(0, len(arguments), self.split):
                piece = arguments[start : start + self.split]
                parts.append(_call({"index": index, "function": {"arguments": piece}}))
        return parts

    @property
    def tokens(self) -> int:
        """Tokens it sends when nothing goes wrong."""
        return sum(part["n"] for part in self.deltas())


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {"n": 1, "delta": {"tool_calls": [call]}}


@dataclass
class Served:
    """One request as the endpoint saw it; `sent_s` are the real send times of its chunks."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    sent_s: list[float] = field(default_factory=list)
    completed: bool = False
