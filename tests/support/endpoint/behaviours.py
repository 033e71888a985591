"""The behaviours by model name: ask for the model `steady`, `slow`, `lossy`, ... and get it."""

from __future__ import annotations

from typing import Any

from tests.support.endpoint.reply import Reply, words

_TEXT = words(
    "A lamp is lit in the harbour office while the night clerk copies the tide table by hand. "
    "Each row is short, and each row is different, so the copying goes slowly and without errors. "
    "Nobody has asked for the copy, but the old one is torn along its fold and cannot be read."
)
_LOOP = words("The pressure must be checked again before the valve can be opened. ")

MODELS = ("steady", "slow", "lossy", "looping", "lying", "dying", "thinker", "silent-thinker")


def by_model(body: dict[str, Any]) -> Reply:
    """The reply that the requested model's behaviour gives, cut to `max_tokens`."""
    limit = int(body.get("max_tokens") or 64)
    tokens = tuple(_TEXT[i % len(_TEXT)] for i in range(limit))
    prompt = sum(len(words(str(m.get("content")))) for m in body.get("messages", ()))
    prompt = prompt or len(words(str(body.get("prompt", ""))))
    name = body["model"]
    if name == "steady":
        return Reply(tokens, ttft_s=0.05, gap_s=0.01, prompt_tokens=prompt, finish="length")
    if name == "slow":
        return Reply(tokens, ttft_s=0.5, gap_s=0.1, prompt_tokens=prompt, finish="length")
    if name == "lossy":
        return Reply(tokens, gap_s=0.002, fault="no-done", prompt_tokens=prompt)
    if name == "looping":
        loop = tuple(_LOOP[i % len(_LOOP)] for i in range(limit))
        return Reply((), reasoning=loop, gap_s=0.0, finish="length", prompt_tokens=prompt)
    if name == "lying":
        usage = {"prompt_tokens": prompt, "completion_tokens": limit // 2}
        return Reply(tokens, gap_s=0.002, usage=usage, finish="length")
    if name == "dying":
        return Reply(tokens, gap_s=0.002, fault="cut", fault_after=limit // 2)
    if name == "thinker":
        thought = words("The question is short so the answer may be short as well. ")
        return Reply(tokens[:12], reasoning=thought, gap_s=0.002, prompt_tokens=prompt)
    return Reply(tokens[:12], gap_s=0.002, prompt_tokens=prompt)  # silent-thinker: no reasoning
