"""Prompts of a wanted number of tokens, each new unless it is meant to be cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dsctl.bench.corpus import Corpus, corpus_text
from dsctl.client import Client
from dsctl.measure.tokens import CHARACTERS_PER_TOKEN, try_count

#: Most tokens that a prompt may be off, as a share of what was asked for.
TOLERANCE = 0.02


class PromptMaker:
    """Makes texts of a number of tokens, by the server's tokenizer where it has one."""

    def __init__(self, client: Client, model: str, corpus: Corpus, seed: int) -> None:
        self._count: Callable[[str], int | None] = lambda text: try_count(client, model, text)
        self._corpus: Corpus = corpus
        self._seed = seed
        self._serial = 0
        self._per_token = CHARACTERS_PER_TOKEN
        self.counts: Literal["server", "estimate"] = (
            "server" if self._count("one two three") is not None else "estimate"
        )

    def fresh_seed(self) -> int:
        """A seed that no earlier prompt of this benchmark had."""
        self._serial += 1
        return self._seed * 1_000_003 + self._serial

    def text(self, tokens: int, seed: int) -> str:
        """About `tokens` tokens of text, beginning like no other seed's (so nothing is cached)."""
        if tokens <= 0:
            return ""
        head = f"[{seed:x}] "
        low, high = 1, 0
        characters = int(tokens * self._per_token)
        best = head
        for _ in range(12):
            source = corpus_text(self._corpus, characters * 2 + 4000, seed)
            best = head + source[: max(1, characters)]
            counted = self._count(best)
            if counted is None or abs(counted - tokens) <= max(1, TOLERANCE * tokens):
                break
            if counted < tokens:
                low = characters
            else:
                high = characters
            guess = int(characters * tokens / counted)
            characters = (
                guess if low < guess < (high or guess + 1) else (low + (high or guess)) // 2
            )
        else:
            return best
        if self.counts == "server":
            self._per_token = len(best) / tokens
        return best


def messages(context: str, prompt: str) -> list[dict[str, Any]]:
    """The context as a system message (a shared prefix), the prompt as the user's."""
    said = [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": context}, *said] if context else said
