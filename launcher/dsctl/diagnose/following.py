"""Follows one signature through a log: its steps, companions and counter-signs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dsctl.diagnose.clean import LONGEST_EVIDENCE, cut_around
from dsctl.diagnose.context import Contexts, Sign
from dsctl.diagnose.redact import redact
from dsctl.diagnose.schema import Pattern, Signature
from dsctl.model.diagnosis import Evidence

#: Evidence kept of one match; a step seen a thousand times does not need a thousand lines.
MOST_EVIDENCE = 6


class Line:
    """A line worth a look: its text, where it stands, and its evidence once that is asked for."""

    def __init__(
        self, text: str, start: int, number: int, source: str | None, position: int
    ) -> None:
        self.text = text
        self.source = source
        self.position = position
        self._start = start
        self._number = number
        self._evidence: Evidence | None = None

    def evidence(self) -> Evidence:
        """The line as it is shown: shortened around its first literal, without secrets."""
        if self._evidence is None:
            shown = cut_around(self.text, self._start, LONGEST_EVIDENCE).strip()
            self._evidence = Evidence(line=self._number, text=redact(shown), source=self.source)
        return self._evidence


@dataclass
class Match:
    """A signature that has been seen whole, or a structured line."""

    cause_id: str
    lines: tuple[Line, ...]
    numbers: dict[str, str]
    #: Position in reading order, over all sources.
    position: int
    signature: Signature | None = None

    @property
    def source(self) -> str | None:
        """The log it was found in."""
        return self.lines[0].source

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Its lines as they are shown."""
        return tuple(line.evidence() for line in self.lines)


@dataclass
class _Chain:
    """The steps of a signature that have been seen so far."""

    step: int  # the step last completed
    position: int
    count: int = 0  # of the next step
    lines: list[Line] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Watched:
    """A signature being followed."""

    cause_id: str
    signature: Signature
    chain: _Chain | None = None
    match: Match | None = None
    required: dict[int, Match] = field(default_factory=dict)
    forbidden: bool = False

    def uses(self) -> Iterator[tuple[Pattern, Use]]:
        """Every pattern of the signature and what finding it means."""
        for role in ("forbids_after", "forbids", "requires"):
            for index, pattern in enumerate(getattr(self.signature, role)):
                yield pattern, Use(self, role, index)
        # Later steps first: a line that ends one step must not begin the next as well.
        for index, step in reversed(list(enumerate(self.signature.steps))):
            yield Pattern(has=step.has, match=step.match), Use(self, "step", index)

    def forget(self) -> None:
        """A new start: what was seen of the steps belongs to the one before."""
        self.chain = self.match = None
        self.forbidden = False

    def whole(self) -> Match | None:
        """The match with its companions, where all of them fit."""
        if self.match is None or self.forbidden:
            return None
        if len(self.required) < len(self.signature.requires):
            return None
        return _with_required(self.match, self.required)

    def step(self, index: int, numbers: dict[str, str], line: Line, contexts: Contexts) -> None:
        """Take a line that is the step `index` of the signature."""
        if self.match is not None:
            return
        chain = self.chain
        step = self.signature.steps[index]
        if index == 0 and (chain is None or chain.step >= 0):
            if chain is not None and step.times > 1:
                return
            chain = _Chain(step=-1, position=line.position)
        if chain is None or chain.step != index - 1:
            return
        if index and step.within is not None and line.position - chain.position > step.within:
            self.chain = None
            return
        chain.count += 1
        if len(chain.lines) < MOST_EVIDENCE:
            chain.lines.append(line)
        chain.numbers = {**numbers, **chain.numbers}
        self.chain = chain
        if chain.count < step.times:
            return
        chain.step, chain.count, chain.position = index, 0, line.position
        if index + 1 < len(self.signature.steps):
            return
        self.chain = None
        if contexts.fit(self.signature.context):
            self.match = Match(
                self.cause_id,
                tuple(chain.lines),
                chain.numbers,
                line.position,
                self.signature,
            )


@dataclass(frozen=True, eq=False)
class Use:
    """What finding a pattern means for one signature."""

    watched: Watched
    role: str  # `step`, `requires`, `forbids`, `forbids_after`
    index: int

    def is_inert(self) -> bool:
        """Whether seeing the pattern now would change nothing for this signature."""
        watched = self.watched
        if self.role == "requires":
            return self.index in watched.required
        if self.role == "forbids":
            return watched.forbidden
        if self.role == "forbids_after":
            return watched.chain is None and watched.match is None
        if watched.match is not None:
            return True
        if self.index:
            return watched.chain is None or watched.chain.step != self.index - 1
        return False

    def apply(self, numbers: dict[str, str], line: Line, contexts: Contexts) -> None:
        """Take a line in which the pattern was found."""
        watched = self.watched
        if self.role == "step":
            watched.step(self.index, numbers, line, contexts)
        elif self.role == "requires":
            if self.index not in watched.required:
                watched.required[self.index] = Match(
                    watched.cause_id, (line,), numbers, line.position
                )
        elif self.role == "forbids":
            watched.forbidden = True
        else:
            watched.chain = watched.match = None


class Compiled:
    """A pattern with its expression compiled when it is first needed."""

    def __init__(
        self, pattern: Pattern, uses: Sequence[Use], sign: Sign | None, is_wrapper: bool
    ) -> None:
        self.uses = tuple(uses)
        self.sign = sign
        self.is_wrapper = is_wrapper
        self.forbids_after = any(use.role == "forbids_after" for use in self.uses)
        #: Whether a line with it needs no other explanation.
        self.explains = is_wrapper or any(use.role == "step" for use in self.uses)
        #: Whether its literal alone makes it.
        self.is_literal = pattern.match is None
        self._literals = pattern.has
        self._expression = pattern.match
        self._regex: re.Pattern[str] | None = None

    def is_in(self, text: str) -> bool:
        """Whether one of its literals stands in a text."""
        return any(literal in text for literal in self._literals)

    def find(self, text: str) -> dict[str, str] | None:
        """The numbers that the pattern finds in a line that holds its literal, or None."""
        if self._expression is None:
            return {}
        if self._regex is None:
            self._regex = re.compile(self._expression)
        found = self._regex.search(text)
        if found is None:
            return None
        return {k: v for k, v in found.groupdict().items() if v is not None}


def _with_required(match: Match, required: dict[int, Match]) -> Match:
    if not required:
        return match
    numbers = dict(match.numbers)
    lines = list(match.lines)
    for companion in required.values():
        numbers = {**companion.numbers, **numbers}
        lines += [line for line in companion.lines if line not in lines]
    return Match(match.cause_id, tuple(lines), numbers, match.position, match.signature)
