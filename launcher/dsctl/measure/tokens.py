"""How many tokens a text has: by the server's tokenizer where it has one, else estimated."""

from __future__ import annotations

from dsctl.client import Client, RequestError

#: Characters per token of mixed text where nobody can count (a deliberately low guess: prompts
#: come out shorter than asked, never longer than the window).
CHARACTERS_PER_TOKEN = 3.0


def count_tokens(client: Client, model: str, text: str) -> int:
    """Tokens of `text` by `/tokenize` (vLLM), else an estimate."""
    counted = try_count(client, model, text)
    return round(len(text) / CHARACTERS_PER_TOKEN) if counted is None else counted


def try_count(client: Client, model: str, text: str) -> int | None:
    """Tokens of `text` by the server's tokenizer; None when it has no `/tokenize`."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        return int(client.post_json("/tokenize", body)["count"])
    except (RequestError, KeyError, TypeError, ValueError):
        return None
