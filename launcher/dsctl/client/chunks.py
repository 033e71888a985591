"""One chunk of a chat stream, as events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dsctl.client.errors import Failure, FailureKind, RequestError
from dsctl.client.events import (
    Event,
    Finish,
    Logprobs,
    Reasoning,
    Text,
    TokenIds,
    ToolDelta,
    UsageReport,
)


def read_chunk(data: bytes, t: float) -> Iterator[Event]:
    """The events of one `data:` payload that arrived at `t`.

    Raises:
        RequestError: not JSON of the expected shape, or the engine reports an error in it.
    """
    try:
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise TypeError
    except (ValueError, TypeError):
        raise _protocol(data) from None
    if "error" in chunk:
        raise RequestError(Failure(FailureKind.ENGINE, _error_text(chunk["error"])))
    try:
        for choice in chunk.get("choices") or ():
            yield from _choice(choice, t)
        if chunk.get("usage"):
            yield _usage(chunk["usage"], t)
    except (AttributeError, TypeError, ValueError, KeyError):
        raise _protocol(data) from None


def _choice(choice: dict[str, Any], t: float) -> Iterator[Event]:
    delta = choice.get("delta") or {}
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("content")
    tokens = len(ids) if ids else len(logprobs) if logprobs else 1
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    text = delta.get("content") or choice.get("text")
    calls = delta.get("tool_calls") or ()
    # A chunk's tokens are counted once, by the first of its pieces.
    if reasoning:
        yield Reasoning(t, reasoning, tokens)
        tokens = 0
    if text:
        yield Text(t, text, tokens)
        tokens = 0
    for call in calls:
        function = call.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        yield ToolDelta(t, int(call["index"]), call.get("id") or "", name, arguments, tokens)
        tokens = 0
    if ids:
        yield TokenIds(t, tuple(ids))
    if logprobs:
        yield Logprobs(t, tuple(_logprob(entry) for entry in logprobs))
    if choice.get("finish_reason"):
        yield Finish(t, choice["finish_reason"])


def _logprob(entry: dict[str, Any]) -> tuple[str, float, tuple[tuple[str, float], ...]]:
    top = tuple((e["token"], float(e["logprob"])) for e in entry.get("top_logprobs") or ())
    return entry["token"], float(entry["logprob"]), top


def _usage(usage: dict[str, Any], t: float) -> UsageReport:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return UsageReport(
        t,
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        None if cached is None else int(cached),
        None if thought is None else int(thought),
    )


def _error_text(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]


def refusal(status: int, body: bytes) -> Failure:
    """A refused request, with the server's own words."""
    try:
        document = json.loads(body)
        said = document.get("error", document.get("message", document.get("detail", document)))
        message = _error_text(said)
    except (ValueError, AttributeError):
        message = " ".join(body.decode("utf-8", "replace").split())[:300]
    return Failure(FailureKind.REFUSED, f"HTTP {status}: {message or 'no reason given'}", status)


def _protocol(data: bytes) -> RequestError:
    shown = data[:80].decode("utf-8", "replace")
    return RequestError(Failure(FailureKind.PROTOCOL, f"not a chat chunk: {shown!r}"))
