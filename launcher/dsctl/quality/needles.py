"""Builds a needle's haystack from the diverse corpus, sized by the server's own tokenizer."""

from __future__ import annotations

from typing import Any

from dsctl.bench.corpus import diverse_text
from dsctl.client import Client
from dsctl.measure.tokens import count_tokens
from dsctl.quality.schema import Needle


def needle_messages(needle: Needle, client: Client, model: str) -> list[dict[str, Any]]:
    """One user message: about `needle.tokens` of text with the fact inside, then the question."""
    text = sized_text(needle.tokens, client, model)
    paragraphs = text.split("\n\n")
    at = round(needle.depth * len(paragraphs))
    paragraphs.insert(at, needle.text)
    body = "\n\n".join(paragraphs)
    ask = f"Here is a collection of texts.\n\n{body}\n\n---\n{needle.question}"
    return [{"role": "user", "content": ask}]


def sized_text(tokens: int, client: Client, model: str, seed: int = 0) -> str:
    """Diverse text of about `tokens` tokens, never more, cut at a paragraph."""
    characters = tokens * 4
    text = diverse_text(characters, seed=seed)
    counted = count_tokens(client, model, text)
    for _ in range(4):
        if 0.97 * tokens <= counted <= tokens:
            break
        characters = int(characters * tokens / max(1, counted) * 0.985)
        text = diverse_text(characters, seed=seed)
        counted = count_tokens(client, model, text)
    return text
