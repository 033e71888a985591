"""Ready means: ours, right, through its parsers, through a full batch, and no garbage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dsctl.model.event import Event
from dsctl.planning.catalog import load_profile
from dsctl.supervise.journal import Journal
from dsctl.supervise.probes import Probes, probes_of
from dsctl.supervise.questions import Question, ToolCall
from dsctl.supervise.readiness import (
    Answer,
    Called,
    NoAnswer,
    NotYet,
    Readiness,
    Refused,
    Right,
    Wrong,
)

WHO = Question(
    id="who", kind="plain", messages=({"role": "user", "content": "Who?"},), expected="A canary."
)
THINK = WHO.model_copy(
    update={"id": "think", "kind": "thinking", "expected": "5", "expected_reasoning": "2 and 3."}
)
TOOL = WHO.model_copy(
    update={
        "id": "tool",
        "kind": "tool",
        "expected_tool_call": ToolCall(name="weather", arguments={"city": "Paris", "days": 3}),
    }
)
FREE = WHO.model_copy(update={"id": "free", "kind": "free"})
ALL = Probes(known=WHO, thinking=THINK, tool=TOOL, prefill_tokens=4096, free=FREE)
ESSAY = (
    "The sky is blue because the air scatters short waves more than long ones. When the sun is "
    "low its light crosses much more air, and most of the blue has gone before it reaches you."
)


def answer(text: str = "", **given: Any) -> Answer:
    return Answer(**({"text": text, "ttft_s": 0.25, "rate_tok_s": 40.0, "tokens": 9} | given))


GOOD = {
    "who": answer("A canary."),
    "think": answer("5", reasoning="2 and 3."),
    "tool": answer(calls=(Called("weather", '{"days": 3, "city": "Paris"}'),)),
    "free": answer(ESSAY),
}


@dataclass
class ScriptedServer:
    """Serves these ids and gives these answers by question; an exception is raised."""

    ids: Any = ("canary",)
    answers: dict[str, Any] = field(default_factory=lambda: dict(GOOD))
    prefilled: Any = 4096
    asked: list[str] = field(default_factory=list)

    def models(self) -> tuple[str, ...]:
        return self._give("models", self.ids)

    def ask(self, model: str, question: Question) -> Answer:
        return self._give(question.id, self.answers[question.id])

    def prefill(self, model: str, tokens: int) -> int:
        return self._give("prefill", self.prefilled)

    def _give(self, what: str, value: Any) -> Any:
        self.asked.append(what)
        if isinstance(value, Exception):
            raise value
        return value


def check(server: ScriptedServer, probes: Probes = ALL) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    ticks = iter(range(1000))
    readiness = Readiness(server, "canary", probes, clock=lambda: float(next(ticks)))
    return readiness.check(Journal(events.append, clock=lambda: 1.0)), events


def test_all_probes_pass_in_order_and_each_says_what_it_took() -> None:
    server = ScriptedServer()
    outcome, events = check(server)
    assert isinstance(outcome, Right)
    assert server.asked == ["models", "who", "think", "tool", "prefill", "free"]
    assert [e.event for e in events] == [
        "model-id",
        "known-answer",
        "thinking",
        "tool-call",
        "full-prefill",
        "sanity",
    ]
    assert all(e.extra("took_s") > 0 for e in events)
    assert {"known_answer_s", "full_prefill_s", "prefill_tok_s", "ttft_s"} <= set(outcome.numbers)
    assert "0.25 s, 40.0 tok/s" in events[1].message


def test_a_profile_without_questions_is_asked_for_its_model_only() -> None:
    server = ScriptedServer()
    outcome, _ = check(server, Probes())
    assert isinstance(outcome, Right)
    assert server.asked == ["models"]


@pytest.mark.parametrize("probe", ["models", "who", "think", "tool", "prefill", "free"])
def test_silence_anywhere_is_not_yet_and_what_passed_is_not_asked_again(probe: str) -> None:
    server = ScriptedServer()
    if probe == "models":
        server.ids = NoAnswer()
    elif probe == "prefill":
        server.prefilled = NoAnswer()
    else:
        server.answers[probe] = NoAnswer()
    readiness = Readiness(server, "canary", ALL)
    journal = Journal(lambda event: None, clock=lambda: 1.0)
    assert isinstance(readiness.check(journal), NotYet)
    server.ids, server.prefilled, server.answers = ("canary",), 4096, dict(GOOD)
    assert isinstance(readiness.check(journal), Right)
    assert [name for name in server.asked if server.asked.count(name) > 1] == [probe, probe]


@pytest.mark.parametrize("ids", [("llama",), (), Refused("HTTP 404: no /v1/models here")])
def test_a_foreign_server_on_our_port_is_not_ours(ids: Any) -> None:
    server = ScriptedServer(ids=ids)
    outcome, _ = check(server)
    assert isinstance(outcome, Wrong)
    assert outcome.cause == "container.port-in-use"
    assert "not ours" in outcome.summary
    assert server.asked == ["models"], "a foreign server gets no question"


WRONG: list[tuple[str, str, Answer, str]] = [
    ("another answer", "who", answer("A canary"), "output.garbage"),
    ("nothing", "who", answer(""), "output.garbage"),
    ("exclamation marks", "who", answer("!!!!!!!!"), "output.garbage"),
    ("a stray tag", "who", answer("</think>A canary."), "output.think-tag-leak"),
    ("no thought", "think", answer("5"), "unknown"),
    ("another thought", "think", answer("5", reasoning="3 and 2."), "output.garbage"),
    ("a wrong sum", "think", answer("6", reasoning="2 and 3."), "output.garbage"),
    ("a tag in the text", "think", answer("x</think>5", reasoning="2"), "output.think-tag-leak"),
    ("no call", "tool", answer("It is sunny."), "unknown"),
    ("another call", "tool", answer(calls=(Called("weather", "{}"),)), "output.garbage"),
    ("no JSON", "tool", answer(calls=(Called("weather", "Paris"),)), "output.garbage"),
    ("markup", "tool", answer("<｜DSML｜invoke name=weather>"), "output.tool-markup-leak"),
    ("markup in thought", "tool", answer("", reasoning="<tool_call>"), "output.tool-markup-leak"),
    ("garbage", "free", answer("///////// " * 40), "output.garbage"),
    ("another language", "free", answer("das ist ein Satz und noch einer " * 4), "output.garbage"),
]


@pytest.mark.parametrize(("what", "where", "given", "cause"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_answer_is_never_ready(what: str, where: str, given: Answer, cause: str) -> None:
    server = ScriptedServer()
    server.answers[where] = given
    outcome, events = check(server)
    assert isinstance(outcome, Wrong), what
    assert outcome.cause == cause
    assert outcome.remedy
    assert where not in [e.extra("question") for e in events]


def test_a_batch_that_the_server_refuses_is_wrong() -> None:
    outcome, _ = check(ScriptedServer(prefilled=Refused("HTTP 400: too long")))
    assert isinstance(outcome, Wrong)
    assert "full-prefill" in outcome.summary
    assert "too long" in outcome.summary


def test_a_smaller_batch_than_the_budget_is_said_to_be_one() -> None:
    _, events = check(ScriptedServer(prefilled=1000))
    assert "1,000 tokens (of a budget of 4,096)" in events[4].message


def test_white_space_around_an_answer_does_not_matter() -> None:
    server = ScriptedServer()
    server.answers["who"] = answer(" A canary.\n")
    assert isinstance(check(server)[0], Right)


def test_a_matched_answer_needs_its_match_only() -> None:
    matched = WHO.model_copy(update={"expected_match": r"(?<!\d)42(?!\d)"})
    for text, fits in (("The sum is 42.", True), ("142", False), ("", False)):
        server = ScriptedServer()
        server.answers["who"] = answer(text)
        outcome, _ = check(server, Probes(known=matched))
        assert isinstance(outcome, Right) is fits, text


def test_a_thought_that_uses_up_its_tokens_is_no_fault_of_the_parser() -> None:
    server = ScriptedServer()
    server.answers["think"] = answer("", reasoning="2 and 3.", finish="length")
    assert isinstance(check(server)[0], Right)


def test_the_canary_is_asked_what_its_parsers_make_possible() -> None:
    probes = probes_of(load_profile("cpu-canary", {}))
    assert probes.known is not None
    assert probes.thinking is not None
    assert probes.tool is not None
    assert probes.prefill_tokens == 4096


@pytest.mark.parametrize("name", ["dual96-dspark", "dual96-native", "single96-resident"])
def test_the_big_model_is_asked_everything(name: str) -> None:
    profile = load_profile(name, {})
    probes = probes_of(profile)
    for question in (probes.known, probes.thinking, probes.tool, probes.free):
        assert question is not None
    assert probes.prefill_tokens == profile.value("max_num_batched_tokens")
