"""Follows the signatures of all causes through a log, line by line, in bounded memory.

Pure: nothing is read or kept but counters and the evidence of what has been found so far.

One automaton finds all literals of all signatures. Most of them can change nothing most of the
time: a signature that was seen whole, the third step of one whose first has not been seen, a state
that the engine is in already. Such a literal is muted, and a line that holds only muted literals
costs no more than finding it. What changes wakes the literals that it concerns and no others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from dsctl.diagnose.catalog import Catalog, shipped_catalog
from dsctl.diagnose.clean import LONGEST_LINE, clean_line, cut_around
from dsctl.diagnose.context import UNSEEN, Contexts
from dsctl.diagnose.following import Compiled, Line, Match, Use, Watched
from dsctl.diagnose.prefilter import Prefilter
from dsctl.diagnose.schema import Pattern
from dsctl.diagnose.starts import History, Start
from dsctl.model.diagnosis import Diagnosis

#: What a literal can do now: nothing; anything; tell what the engine is doing and no more.
MUTED, LIVE, TELLING = 0, 1, 2

#: The context group that follows a start, and states of it (`contexts.yaml`).
PHASE, STARTING, STOPPING = "phase", "starting", "stopping"

#: Kept of what the host says apart from the starts.
MOST_APART = 100

#: Unexplained errors shown when no cause is found.
MOST_UNEXPLAINED = 3

#: What our own supervisor and runtime write where they know the cause (docs/diagnose.md).
STRUCTURED = "dsctl-cause: "
_STRUCTURED = re.compile(
    r"(?:^|[\])] |: |\b(?:INFO|WARNING|ERROR|CRITICAL) )"
    r"dsctl-cause: (?P<id>[a-z]+\.[a-z0-9-]+)(?P<rest>.*)$"
)
_PAIR = re.compile(r"(\w+)=(\"[^\"]*\"|\S+)")
_UNEXPLAINED = ("Error: ", "Exception: ")
_EXCEPTION = re.compile(r"(?:Error|Exception): \S")
#: A line of this level may speak of an error; it does not report one.
_NO_ERROR = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b|Warning: ")


class Matcher:
    """Reads a log incrementally: `feed` each line, ask for the `result` at any time."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        self.catalog = catalog or shipped_catalog()
        self._lines: dict[str | None, int] = defaultdict(int)
        self._position = 0
        self._history = History()
        #: What the host said before the first start, or in another log than the engine's.
        self._apart: list[Match] = []
        # Of the start being read:
        self._begun = False
        self._engine: str | None = None  # the source in which it began
        self._structured: list[Match] = []
        self._unexplained: list[Line] = []
        self._troubled = False
        self._touched: dict[Watched, None] = {}
        self._contexts = Contexts(self.catalog.contexts)
        self._watched = [
            Watched(cause.id, signature)
            for cause in self.catalog.causes.values()
            for signature in cause.signatures
        ]
        uses: dict[Pattern, list[Use]] = defaultdict(list)
        literals_of: dict[Watched, set[str]] = defaultdict(set)
        for watched in self._watched:
            for pattern, use in watched.uses():
                uses[pattern].append(use)
                literals_of[watched].update(pattern.has)
        signs = self._contexts.signs
        wrappers = frozenset(self.catalog.contexts.wrappers)
        starts = self.catalog.contexts.starts
        patterns = dict.fromkeys([*uses, *signs, *wrappers, *starts])
        self.prefilter = Prefilter(
            [*(literal for p in patterns for literal in p.has), STRUCTURED, *_UNEXPLAINED]
        )
        index_of = self.prefilter.index_of
        self._by_literal: list[list[Compiled]] = [[] for _ in index_of]
        for pattern in patterns:
            compiled = Compiled(
                pattern, uses.get(pattern, ()), signs.get(pattern), pattern in wrappers
            )
            for literal in pattern.has:
                self._by_literal[index_of[literal]].append(compiled)
        self._concerned = {
            watched: tuple(index_of[literal] for literal in literals)
            for watched, literals in literals_of.items()
        }
        self._structured_index = index_of[STRUCTURED]
        self._starts = tuple(Compiled(pattern, (), None, False) for pattern in starts)
        self._start_indices = frozenset(index_of[text] for p in starts for text in p.has)
        self._error_indices = frozenset(index_of[literal] for literal in _UNEXPLAINED)
        self._always_new = self._error_indices | {index_of[t] for p in wrappers for t in p.has}
        #: By literal: the signs that it alone makes, and what it can do when only they matter.
        self._signs = [
            [c.sign for c in compiled if c.sign is not None and c.is_literal]
            for compiled in self._by_literal
        ]
        self._tells = bytearray(
            LIVE if any(c.sign is not None and not c.is_literal for c in compiled) else TELLING
            for compiled in self._by_literal
        )
        #: For each literal of the prefilter, by index: `MUTED`, `LIVE` or `TELLING`.
        self.live = bytearray([LIVE] * len(index_of))

    def feed(self, line: str, source: str | None = None) -> None:
        """Take the next line of a log (of the log named `source`, where there are several)."""
        self._lines[source] += 1
        live = self.live
        if any(live[index] for index, _, _ in self.prefilter.hits_in(line)):
            self.consider(line, self._lines[source], source)

    def consider(self, line: str, number: int, source: str | None = None) -> None:
        """Take a line that holds a live literal; `number` is its line in `source`."""
        if len(line) > LONGEST_LINE:
            hits = self.prefilter.hits_in(line)
            line = cut_around(line, hits[0][1] if hits else 0, LONGEST_LINE)
        for text in _segments(clean_line(line)):
            hits = self.prefilter.hits_in(text)
            if hits:
                self._position = max(self._position + 1, number)
                literals = {index for index, _, _ in hits}
                first = min(start for _, start, _ in hits)
                self._take(Line(text, first, number, source, self._position), literals)
                self._mute(literals)

    def glimpse(self, index: int) -> None:
        """Take a `TELLING` literal that stands in a line and not in a quotation.

        An engine that starts over and over changes its state all the time. This follows it without
        making text of every line that says so.
        """
        signs = self._signs[index]
        self._changed(self._contexts.see(signs))
        if all(self._contexts.is_inert(sign) for sign in signs):
            self.live[index] = MUTED

    def result(self) -> Diagnosis:
        """The diagnosis of what has been read so far; more lines may follow."""
        from dsctl.diagnose.verdict import judge

        now, apart = self._now()
        phase = self._contexts.now(PHASE)
        return judge(self.catalog, self._history, now, [*self._apart, *apart], phase)

    def _now(self) -> tuple[Start, list[Match]]:
        """The start being read, and what the host said apart from it."""
        whole = [watched.whole() for watched in self._touched]
        found = [*self._structured, *(match for match in whole if match is not None)]
        apart = [match for match in found if self._is_apart(match)]
        return (
            Start(
                self._history.count + 1,
                tuple(match for match in found if match not in apart),
                tuple(self._unexplained),
                self._troubled,
            ),
            apart,
        )

    def _is_apart(self, match: Match) -> bool:
        if self.catalog.causes[match.cause_id].witness == "engine":
            return False
        return not self._begun or match.source != self._engine

    def _begin(self, line: Line) -> None:
        """An API server says its version: a start begins, or goes on with one more server."""
        now, apart = self._now()
        reached = self._troubled or self._contexts.now(PHASE) not in (UNSEEN, STARTING)
        if reached or (self._begun and now.failed):
            self._history.add(now)
            self._structured, self._unexplained, self._troubled = [], [], False
            for watched in self._touched:
                watched.forget()
                self._wake(self._concerned[watched])
            self._touched.clear()
            self._wake(self._always_new)
            self._changed(self._contexts.forget())
        elif apart:
            for watched in [w for w in self._touched if w.match in apart]:
                watched.forget()
                self._wake(self._concerned[watched])
        self._apart = (self._apart + apart)[:MOST_APART]
        self._begun, self._engine = True, line.source

    def _mute(self, literals: Iterable[int]) -> None:
        """Stop looking at literals that cannot change anything until something else does."""
        for index in literals:
            if self.live[index]:
                self.live[index] = self._use_of(index)

    def _use_of(self, index: int) -> int:
        """What a line with this literal could do now."""
        if index == self._structured_index or index in self._start_indices:
            return LIVE
        if index in self._error_indices and len(self._unexplained) < MOST_UNEXPLAINED:
            return LIVE
        use = MUTED
        for compiled in self._by_literal[index]:
            if _can_matter(compiled.uses) or (compiled.is_wrapper and not self._troubled):
                return LIVE
            if compiled.sign is not None and not self._contexts.is_inert(compiled.sign):
                if not compiled.is_literal:
                    return LIVE
                use = TELLING
        return use

    def _wake(self, literals: Iterable[int]) -> None:
        for index in literals:
            self.live[index] = LIVE

    def _take(self, line: Line, literals: set[int]) -> None:
        """Follow what a line means."""
        if not literals.isdisjoint(self._start_indices) and any(
            start.find(line.text) is not None for start in self._starts if start.is_in(line.text)
        ):
            self._begin(line)
        if self._structured_index in literals:
            self._take_structured(line)
        found: dict[Compiled, dict[str, str]] = {}
        for index in literals:
            for compiled in self._by_literal[index]:
                if compiled not in found and (compiled.forbids_after or self._matters(compiled)):
                    numbers = compiled.find(line.text)
                    if numbers is not None:
                        found[compiled] = numbers
        if found:
            self._follow(found, line)
        if (
            len(self._unexplained) < MOST_UNEXPLAINED
            and not literals.isdisjoint(self._error_indices)
            and not any(compiled.explains for compiled in found)
        ):
            self._note_unexplained(line, literals)

    def _follow(self, found: dict[Compiled, dict[str, str]], line: Line) -> None:
        """Bring contexts and signatures up to a line in which patterns were found."""
        signs = [compiled.sign for compiled in found if compiled.sign is not None]
        if signs:
            self._changed(self._contexts.see(signs))
        if not self._troubled and any(compiled.is_wrapper for compiled in found):
            self._troubled = self._contexts.now(PHASE) != STOPPING
        # Last, what says that it went on after all: it may stand in the very line of a step.
        for compiled, numbers in sorted(found.items(), key=lambda item: item[0].forbids_after):
            for use in compiled.uses:
                if not use.is_inert():
                    use.apply(numbers, line, self._contexts)
                    self._touched[use.watched] = None
                    self._wake(self._concerned[use.watched])

    def _changed(self, groups: set[str]) -> None:
        """Wake what can now tell of another state."""
        index_of = self.prefilter.index_of
        for group in groups:
            for literal in self._contexts.telling(group):
                index = index_of[literal]
                if not self.live[index]:
                    self.live[index] = self._tells[index]

    def _matters(self, compiled: Compiled) -> bool:
        """Whether finding the pattern now would change anything."""
        if compiled.sign is not None and not self._contexts.is_inert(compiled.sign):
            return True
        return _can_matter(compiled.uses) or (compiled.is_wrapper and not self._troubled)

    def _note_unexplained(self, line: Line, literals: set[int]) -> None:
        """Keep an error that no pattern explains, not even one that cannot matter any more."""
        if _NO_ERROR.search(line.text) or not _EXCEPTION.search(line.text):
            return
        candidates = {c for index in literals for c in self._by_literal[index] if c.explains}
        if not any(compiled.find(line.text) is not None for compiled in candidates):
            self._unexplained.append(line)

    def _take_structured(self, line: Line) -> None:
        match = _STRUCTURED.search(line.text)
        if match is None or match["id"] not in self.catalog.causes:
            return
        if any(known.cause_id == match["id"] for known in self._structured):
            return
        numbers = {key: value.strip('"') for key, value in _PAIR.findall(match["rest"])}
        self._structured.append(Match(match["id"], (line,), numbers, self._position))


def _can_matter(uses: Iterable[Use]) -> bool:
    return any(not use.is_inert() for use in uses)


def _segments(text: str) -> list[str]:
    """The states of a progress bar that share a line."""
    return text.split("\r") if "\r" in text else [text]
