"""The shape of the cause files `causes/*.yaml`: what a person adding a cause can write."""

from __future__ import annotations

import re
import string
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dsctl.model.base import Value

#: These are written otherwise inside a JSON string, and a log may be wrapped in one.
_NOT_IN_LITERALS = re.compile(r"[\"\\<>&\x00-\x1f]|[^\x00-\x7f]")
_SHORTEST_LITERAL = 4
_ID = re.compile(r"[a-z]+\.[a-z0-9-]+")


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Pattern(Value):
    """A kind of line: it holds one of the literals `has`, and `match` (if any) is found in it.

    The literals find candidate lines in a fast pass over the raw log, so every line that `match`
    should find must hold one. Named groups of `match` are the numbers a remedy can use.
    """

    has: Texts
    match: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_is_literal(cls, value: Any) -> Any:
        return {"has": value} if isinstance(value, str) else value

    @field_validator("has")
    @classmethod
    def _literals_can_be_found(cls, literals: tuple[str, ...]) -> tuple[str, ...]:
        for text in literals:
            if len(text) < _SHORTEST_LITERAL or _NOT_IN_LITERALS.search(text):
                raise ValueError(
                    f"the literal {text!r} must be at least {_SHORTEST_LITERAL} ASCII characters "
                    'without any of " \\ < > &'
                )
        return literals

    @field_validator("match")
    @classmethod
    def _is_regex(cls, expression: str | None) -> str | None:
        if expression is not None:
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error} in {expression!r}") from None
        return expression

    def groups(self) -> set[str]:
        """Names of the numbers that a match gives."""
        return set(re.compile(self.match).groupindex) if self.match else set()


Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_as_tuple)]


class Step(Pattern):
    """One step of a signature: seen `times` times, at most `within` lines after the step before."""

    times: int = Field(default=1, ge=1)
    within: int | None = Field(default=None, ge=0)


class Signature(Value):
    """How a cause shows: `steps` in this order, in a fitting surrounding."""

    steps: Annotated[tuple[Step, ...], BeforeValidator(_as_tuple)] = Field(min_length=1)
    #: Context group -> states, one of which it must be in when the last step is seen.
    context: dict[str, Texts] = Field(default_factory=dict)
    #: Each must stand somewhere in the log; they are evidence too.
    requires: Patterns = ()
    #: None may stand anywhere in the same start.
    forbids: Patterns = ()
    #: None may stand after the first step: a sign that it went on after all.
    forbids_after: Patterns = ()


class CauseEntry(Value):
    """One cause as data."""

    id: str
    title: str
    meaning: str
    #: From 1 (names one mistake exactly) to 99 (a consequence of many); the lowest found is named.
    order: int = Field(ge=1, le=99)
    #: Sentences; one whose placeholders the log does not fill is left out.
    remedy: Texts
    #: Causes that are consequences of this one where both are found.
    explains: Texts = ()
    #: Which cause looks like this one, and how to tell them apart.
    confused_with: dict[str, str] = Field(default_factory=dict)
    #: Who writes the lines: `host` is the kernel, Docker, a tool. Before the first start of a mixed
    #: log, or in a log of their own, those belong to no start in particular.
    witness: Literal["engine", "host"] = "engine"
    #: Where the knowledge comes from.
    source: str
    signatures: Annotated[tuple[Signature, ...], BeforeValidator(_as_tuple)] = Field(min_length=1)
    #: Names of the functions of `numbers.py` that work out more numbers.
    derive: Texts = ()

    @field_validator("id")
    @classmethod
    def _is_an_id(cls, id_: str) -> str:
        if not _ID.fullmatch(id_):
            raise ValueError(f"{id_!r} is not an id such as `memory.kv-too-small`")
        return id_

    @model_validator(mode="after")
    def _remedy_can_be_said(self) -> CauseEntry:
        from dsctl.diagnose.numbers import DERIVED

        known = {"source_line"}
        for signature in self.signatures:
            for pattern in (*signature.steps, *signature.requires):
                known |= pattern.groups()
        for name in self.derive:
            if name not in DERIVED:
                raise ValueError(f"derive: there is no function {name!r} in numbers.py")
            known.add(name)
        for sentence in self.remedy:
            unknown = placeholders(sentence) - known
            if unknown:
                raise ValueError(f"remedy: no signature gives {sorted(unknown)}")
        if all(placeholders(sentence) for sentence in self.remedy):
            raise ValueError("remedy: one sentence must do without placeholders")
        return self


class CauseFile(Value):
    """One file of `causes/`."""

    causes: tuple[CauseEntry, ...]


class ContextState(Value):
    """A state of a context group and the lines that tell of it."""

    name: str
    lines: Patterns


class ContextGroup(Value):
    """What the engine was doing, as the log tells: one state of several at any line.

    Without `reset` the latest line counts. With it, until the next reset, a state that stands later
    in the list is not replaced by an earlier one.
    """

    name: str
    reset: Patterns = ()
    states: tuple[ContextState, ...]


class ContextFile(Value):
    """The file `contexts.yaml`."""

    groups: tuple[ContextGroup, ...]
    #: Lines that only pass on a failure that stands above them; never evidence.
    wrappers: Patterns
    #: The first line that an engine writes of each start.
    starts: Patterns = ()


def placeholders(sentence: str) -> set[str]:
    """Names in braces."""
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
