"""Asks one case and classifies what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from dsctl.client import Client, Completion, Event, Reasoning, RequestError, Text
from dsctl.client.completion import Assembler
from dsctl.quality.answers import Answer, CaseRecord, Outcome, StoredCall
from dsctl.quality.loops import LoopKind, LoopVerdict, LoopWatch, detect_loop
from dsctl.quality.schema import Case, Suite

Watch = Callable[[Event], None]


def ask_case(
    client: Client,
    model: str,
    suite: Suite,
    case: Case,
    messages: list[dict[str, Any]],
    *,
    extra: dict[str, Any] | None = None,
    watch: Watch | None = None,
    now: Callable[[], float] = time.time,
) -> CaseRecord:
    """Ask every turn of a case in one conversation; the answers so far are carried along.

    `messages` is the conversation up to and including the first question. A failed request ends
    the case: its record is incomplete and the case is asked again on resume.
    """
    request = request_of(suite, case, extra)
    started = now()
    answers: list[Answer] = []
    conversation = list(messages)
    for number in range(max(1, len(case.turns))):
        if number:
            conversation.append({"role": "assistant", "content": answers[-1].text})
            conversation.append({"role": "user", "content": case.turns[number].user})
        events = client.stream_chat(conversation, model=model, **request)
        answers.append(take_answer(events, thinking=suite.thinking == "expected", watch=watch))
        if answers[-1].outcome is Outcome.FAILED:
            break
    return CaseRecord(
        case=case.id,
        suite=suite.name,
        started=started,
        messages=tuple(conversation),
        request=request,
        answers=tuple(answers),
    )


def request_of(suite: Suite, case: Case, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The parameters sent with a case: the suite's, the case's over them, then the user's."""
    request = {**suite.request, **case.request}
    if suite.thinking == "off" and "chat_template_kwargs" not in request:
        request["chat_template_kwargs"] = {"thinking": False}
    return {**request, **(extra or {})}


def take_answer(events: Iterable[Event], *, thinking: bool, watch: Watch | None = None) -> Answer:
    """Collect a streamed answer; a confirmed hard loop stops it."""
    assembler, thought, said = Assembler(), LoopWatch(), LoopWatch()
    failure, loop = None, None
    began = time.perf_counter()
    try:
        for event in events:
            assembler.add(event)
            if watch is not None:
                watch(event)
            if isinstance(event, Reasoning):
                loop = thought.add(event.text)
            elif isinstance(event, Text):
                loop = said.add(event.text)
            if loop is not None:
                break
    except RequestError as error:
        failure = error.failure
    done = assembler.result(total_s=time.perf_counter() - began, failure=failure)
    return answer_of(done, thinking=thinking, loop=loop)


def answer_of(done: Completion, *, thinking: bool, loop: LoopVerdict | None = None) -> Answer:
    """A completion as it is stored, with its outcome."""
    verdict = loop or _worse(detect_loop(done.reasoning), detect_loop(done.text))
    return Answer(
        text=done.text,
        reasoning=done.reasoning,
        tool_calls=tuple(
            StoredCall(id=c.id, name=c.name, arguments=c.arguments) for c in done.tool_calls
        ),
        finish_reason=done.finish_reason,
        outcome=_outcome(done, verdict, thinking),
        loop=verdict.why,
        loop_kind=verdict.kind,
        failure=f"{done.failure.kind}: {done.failure.message}" if done.failure else None,
        tokens=done.tokens,
        reasoning_tokens=done.usage.reasoning_tokens if done.usage else None,
        prompt_tokens=done.usage.prompt_tokens if done.usage else None,
        cached_tokens=done.usage.cached_tokens if done.usage else None,
        usage_doubt=done.usage_doubt,
        ttft_s=done.ttft_s,
        total_s=done.total_s,
        arrivals=tuple((round(t, 6), n) for t, n in done.arrivals),
    )


def _worse(a: LoopVerdict, b: LoopVerdict) -> LoopVerdict:
    order = (LoopKind.NONE, LoopKind.SUSPECTED, LoopKind.CONFIRMED)
    return max(a, b, key=lambda verdict: order.index(verdict.kind))


def _outcome(done: Completion, loop: LoopVerdict, thinking: bool) -> Outcome:
    if done.failure is not None:
        return Outcome.FAILED
    if loop.kind is LoopKind.CONFIRMED:
        return Outcome.LOOP
    if done.finish_reason == "length":
        return Outcome.LENGTH
    if not done.text.strip() and not done.tool_calls:
        return Outcome.EMPTY
    if thinking and not done.reasoning.strip():
        return Outcome.EMPTY_THINKING
    return Outcome.STOP
