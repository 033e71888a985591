"""Readiness: ours, right, through its parsers, through a full batch, and no garbage – in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dsctl.model.event import Phase
from dsctl.progress import human_seconds
from dsctl.supervise.journal import Journal
from dsctl.supervise.probes import Probes
from dsctl.supervise.questions import Question
from dsctl.supervise.sanity import insane, leak


@dataclass(frozen=True)
class Called:
    """A tool call as it came out; `arguments` is the raw text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One streamed answer: text, seconds to the first token, tokens per second after it."""

    text: str
    ttft_s: float
    rate_tok_s: float | None
    tokens: int
    reasoning: str = ""
    calls: tuple[Called, ...] = ()
    finish: str | None = None


class NoAnswer(Exception):  # noqa: N818 - it is no error while an engine starts
    """Nobody answers there (yet)."""


class Refused(Exception):  # noqa: N818 - a verdict of the server, which a probe judges
    """The server lives and refuses the request; the message is its reason."""


class Server(Protocol):
    """What readiness asks of an endpoint."""

    def models(self) -> tuple[str, ...]:
        """Ids it serves. Raises NoAnswer, Refused."""

    def ask(self, model: str, question: Question) -> Answer:
        """One streamed answer. Raises NoAnswer, Refused."""

    def prefill(self, model: str, tokens: int) -> int:
        """Fill one step with `tokens` fresh tokens; how many it were. Raises NoAnswer, Refused."""


@dataclass(frozen=True)
class NotYet:
    """Not answering yet."""


@dataclass(frozen=True)
class Wrong:
    """Answers, but wrongly: a start that must not be called ready."""

    cause: str
    summary: str
    remedy: str


@dataclass(frozen=True)
class Right:
    """Ready. `numbers`: what was measured on the way."""

    numbers: dict[str, float]


Outcome = NotYet | Wrong | Right
#: What a probe found: wrong, or what to tell and its numbers.
_Found = Wrong | tuple[str, dict[str, float]]

_RAISE_IT = (
    "do not serve with it; remove the engine environment and caches and start again, and report it "
    "with `dsctl bundle` if it persists"
)
_PARSERS = (
    "the parsers of the profile must be those of the model (`dsctl profiles show NAME`: "
    "reasoning_parser, tool_call_parser, tokenizer_mode)"
)


@dataclass
class Readiness:
    """The probes, in order. Those that have passed are not made again while others wait."""

    server: Server
    model: str
    probes: Probes
    clock: Callable[[], float] = time.monotonic
    _passed: set[str] = field(default_factory=set)
    _numbers: dict[str, float] = field(default_factory=dict)

    def check(self, journal: Journal) -> Outcome:
        """Make the probes that are left, now; each that passes is told with what it took."""
        for name, probe in self._steps():
            if name in self._passed:
                continue
            began = self.clock()
            try:
                found = probe()
            except NoAnswer:
                return NotYet()
            except Refused as error:
                return _refused(name, str(error))
            if isinstance(found, Wrong):
                return found
            took = self.clock() - began
            message, numbers = found
            self._passed.add(name)
            self._numbers |= {f"{name.replace('-', '_')}_s": took, **numbers}
            journal.say(Phase.WARMING, name, message, took_s=took, **numbers)
        return Right(dict(self._numbers))

    def _steps(self) -> list[tuple[str, Callable[[], _Found]]]:
        probes = self.probes
        steps: list[tuple[str, Callable[[], _Found]]] = [("model-id", self._model_id)]
        for name, question, judge in (
            ("known-answer", probes.known, _judge_known),
            ("thinking", probes.thinking, _judge_thinking),
            ("tool-call", probes.tool, _judge_tool),
        ):
            if question is not None:
                steps.append((name, self._asks(question, judge)))
        if probes.prefill_tokens:
            steps.append(("full-prefill", self._prefill))
        if probes.free is not None:
            steps.append(("sanity", self._asks(probes.free, _judge_free)))
        return steps

    def _model_id(self) -> _Found:
        served = self.server.models()
        if self.model in served:
            return f"serves {self.model}", {}
        return _foreign(f"serves {', '.join(served) or 'nothing'}, not {self.model}")

    def _asks(
        self, question: Question, judge: Callable[[Question, Answer], _Found]
    ) -> Callable[[], _Found]:
        def probe() -> _Found:
            answer = self.server.ask(self.model, question)
            leaked = leak(answer.text, answer.reasoning)
            if leaked is not None:
                said = f"question {question.id!r}: {leaked.why}"
                return Wrong(cause=leaked.cause, summary=said, remedy=_PARSERS)
            return judge(question, answer)

        return probe

    def _prefill(self) -> _Found:
        asked = self.probes.prefill_tokens
        began = self.clock()
        tokens = self.server.prefill(self.model, asked)
        took = self.clock() - began
        rate = tokens / took if took > 0 else 0.0
        of = "" if tokens > 0.9 * asked else f" (of a budget of {asked:,})"
        return (
            f"a full batch of {tokens:,} tokens{of} survived in {human_seconds(took)} "
            f"({rate:,.0f} tok/s)",
            {"prefill_tokens": float(tokens), "prefill_tok_s": rate},
        )


def _judge_known(question: Question, answer: Answer) -> _Found:
    if not question.fits(answer.text):
        return Wrong(
            cause="output.garbage",
            summary=f"known question {question.id!r} was answered {answer.text[:80]!r} instead "
            f"of {question.wanted}: this build computes wrongly",
            remedy=_RAISE_IT,
        )
    rate = f", {answer.rate_tok_s:.1f} tok/s" if answer.rate_tok_s else ""
    numbers = {"ttft_s": answer.ttft_s}
    if answer.rate_tok_s:
        numbers["decode_tok_s"] = answer.rate_tok_s
    return (
        f"known question answered rightly: first token after {answer.ttft_s:.2f} s{rate}",
        numbers,
    )


def _judge_thinking(question: Question, answer: Answer) -> _Found:
    """Thought apart from the answer, both there and right."""
    if not answer.reasoning.strip():
        return Wrong(
            cause="unknown",
            summary=f"question {question.id!r} asked for thinking and no reasoning came back: "
            f"the answer began {answer.text[:60]!r}",
            remedy=_PARSERS,
        )
    wanted = question.expected_reasoning
    if wanted is not None and answer.reasoning.strip() != wanted.strip():
        return Wrong(
            cause="output.garbage",
            summary=f"question {question.id!r}: the reasoning was {answer.reasoning[:80]!r} "
            f"instead of {wanted!r}: this build computes wrongly",
            remedy=_RAISE_IT,
        )
    # A long thought may use up its tokens before the answer; that is no fault of the parser.
    if not (answer.finish == "length" and not answer.text) and not question.fits(answer.text):
        return Wrong(
            cause="output.garbage",
            summary=f"question {question.id!r} was thought about and answered "
            f"{answer.text[:80]!r} instead of {question.wanted}",
            remedy=_RAISE_IT,
        )
    return f"thinks apart from its answer ({answer.tokens} tokens)", {}


def _judge_tool(question: Question, answer: Answer) -> _Found:
    """The call that must come out, as a call and not as text."""
    wanted = question.expected_tool_call
    got = [(call.name, _parsed(call.arguments)) for call in answer.calls]
    if wanted is not None and (wanted.name, wanted.arguments) not in got:
        said = f"calls {got}" if got else f"text {answer.text[:60]!r}"
        return Wrong(
            cause="output.garbage" if got else "unknown",
            summary=f"question {question.id!r} must call {wanted.name}({wanted.arguments}); "
            f"what came was {said}",
            remedy=_PARSERS,
        )
    return f"calls its tools ({wanted.name if wanted is not None else 'none asked'})", {}


def _judge_free(question: Question, answer: Answer) -> _Found:
    found = insane(answer.text, english=True)
    if found is not None:
        return Wrong(
            cause=found.cause,
            summary=f"asked for a few sentences it wrote {answer.text[:80]!r}: {found.why}",
            remedy="on two cards try `--set peer_to_peer=off` first: data that goes wrong between "
            f"them looks like this; otherwise {_RAISE_IT}",
        )
    return f"writes sense ({answer.tokens} tokens)", {}


def _foreign(does: str) -> Wrong:
    return Wrong(
        cause="container.port-in-use",
        summary=f"the server on our endpoint {does}: it is not ours",
        remedy="choose another port with `--set port=N`, or stop that server",
    )


def _refused(name: str, why: str) -> Wrong:
    if name == "model-id":
        return _foreign(f"lists no models ({why[:200]})")
    return Wrong(
        cause="config.invalid-argument",
        summary=f"probe {name}: the server refused it: {why[:200]}",
        remedy="the profile promises what this server does not do; see `dsctl profiles show NAME`",
    )


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
