"""The engine's HTTP side as readiness asks it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dsctl.client import Client, FailureKind, RequestError, Target
from dsctl.model.endpoint import Endpoint
from dsctl.supervise.questions import Question
from dsctl.supervise.readiness import Answer, Called, NoAnswer, Refused

_SILENCE_S = 120.0
_PREFILL_S = 600.0
#: Natural text to fill a batch with; as ids where the server tells them, else as it is.
_PASSAGE = (
    "The harbour lights came on one after another while the tide turned, and the clerk wrote down "
    "each ship with its cargo, its master and the hour; nobody had asked for the list, but the old "
    "one was torn along its fold. Copper, salt, timber and wool went north, letters came south. "
)
#: Where tokens cannot be counted: English has 4 to 5 characters to a token, and a prompt that is
#: too long is refused.
_CHARACTERS_PER_TOKEN = 3


class HttpServer:
    """Readiness' view of an endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        patience_s: float = _SILENCE_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = Client(Target.of(endpoint), silence_s=min(patience_s, _SILENCE_S))
        self._now = now

    def models(self) -> tuple[str, ...]:
        """Ids the server lists.

        Raises:
            NoAnswer: it does not answer (yet).
            Refused: it is a server, but not one of models.
        """
        try:
            return self._client.models()
        except RequestError as error:
            raise _sorted_out(error) from None

    def ask(self, model: str, question: Question) -> Answer:
        """Ask a known question in one streamed request, greedily.

        Raises:
            NoAnswer: the request failed.
            Refused: the server says that it is a bad request.
        """
        extra: dict[str, Any] = {"tools": list(question.tools)} if question.tools else {}
        answer = self._client.chat(
            list(question.messages),
            model=model,
            max_tokens=question.max_tokens,
            temperature=0.0,
            chat_template_kwargs={"thinking": question.kind == "thinking"},
            **extra,
        )
        if answer.failure is not None:
            raise _sorted_out(RequestError(answer.failure))
        return Answer(
            text=answer.text,
            ttft_s=answer.ttft_s or 0.0,
            rate_tok_s=answer.decode_tok_s,
            tokens=answer.tokens,
            reasoning=answer.reasoning,
            calls=tuple(Called(call.name, call.arguments) for call in answer.tool_calls),
            finish=answer.finish_reason,
        )

    def prefill(self, model: str, tokens: int) -> int:
        """One request that fills `tokens` of a step (or the model's window, several times over).

        The text begins differently each time, so that no prefix cache spares the work.

        Raises:
            NoAnswer: the request failed.
            Refused: the server says that it is a bad request.
        """
        shift = int(self._now() * 1000)
        try:
            ids, window = self._ids(model)
            prompts = _prompts(ids, tokens, window, shift)
            answer = self._client.post_json(
                "/v1/completions",
                {"model": model, "prompt": prompts, "max_tokens": 1, "temperature": 0},
                timeout_s=_PREFILL_S,
            )
        except RequestError as error:
            raise _sorted_out(error) from None
        usage = answer.get("usage") if isinstance(answer, dict) else None
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return counted if isinstance(counted, int) else tokens

    def _ids(self, model: str) -> tuple[list[int] | None, int | None]:
        """Token ids of the passage and the longest prompt; None where the server does not tell."""
        try:
            told = self._client.post_json("/tokenize", {"model": model, "prompt": _PASSAGE})
            ids = [int(i) for i in told["tokens"]]
            window = told.get("max_model_len")
        except RequestError as error:
            if error.failure.kind is FailureKind.REFUSED:
                return None, None
            raise
        except (KeyError, TypeError, ValueError):
            return None, None
        return ids[1:] or None, window if isinstance(window, int) else None


def _prompts(
    ids: list[int] | None, tokens: int, window: int | None, shift: int
) -> list[list[int]] | list[str]:
    """Prompts that make `tokens` tokens together, each within the window."""
    if ids is None:
        text = _PASSAGE * (tokens * _CHARACTERS_PER_TOKEN // len(_PASSAGE) + 1)
        return [f"{shift} {text[: tokens * _CHARACTERS_PER_TOKEN]}"]
    longest = max(1, (window - 1) if window is not None else tokens)
    prompts = []
    left = tokens
    while left > 0:
        length = min(left, longest)
        start = (shift + left) % len(ids)
        repeated = ids * (length // len(ids) + 2)
        prompts.append(repeated[start : start + length])
        left -= length
    return prompts


def _sorted_out(error: RequestError) -> NoAnswer | Refused:
    """A refusal of this request apart from a server that cannot answer (yet)."""
    failure = error.failure
    status = failure.status or 0
    if failure.kind is FailureKind.REFUSED and 400 <= status < 500 and status not in (408, 429):
        return Refused(failure.message)
    return NoAnswer(failure.message)
