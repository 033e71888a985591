"""Tells a reasoning loop from long honest reasoning. Pure: text in, verdict out.

Two signs, both about the END of the text, because a loop that the model left is no loop:

- a period: the tail is one passage repeated exactly;
- no news: hardly any sequence of 8 words in the last 1,200 is new. Digits are masked in prose, so
  "Attempt 17: let me check again" does not count as news because of its 17; in passages that are
  mostly numbers (an enumeration, a table) they are not masked, because there they are the content.

Honest reasoning revisits points in other words, with other numbers, and goes on to new ones: its
share of new 8-word sequences stays far above the bound (tests hold both sides).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

_N = 8
_WINDOW = 1200
_NEWS_BOUND = 0.06
_SUSPECT_BOUND = 0.20
_MIN_REPEATED_WORDS = 120
_MIN_REPEATS = 4
_MAX_PERIOD = 2000


class LoopKind(StrEnum):
    """How sure it is."""

    NONE = "none"
    SUSPECTED = "suspected"  # shown to the grader, caps nothing
    CONFIRMED = "confirmed"  # a hard loop: caps the case


@dataclass(frozen=True)
class LoopVerdict:
    """What was found; `start` is the character at which the looping begins."""

    kind: LoopKind
    why: str = ""
    start: int | None = None
    period_words: int | None = None
    repeats: float | None = None
    news: float | None = None


_NOTHING = LoopVerdict(LoopKind.NONE)
_WORD = re.compile(r"\S+")
_DIGITS = re.compile(r"\d+")


def detect_loop(text: str) -> LoopVerdict:
    """Whether `text` ends in a loop."""
    matches = list(_WORD.finditer(text))
    if not matches:
        return _NOTHING
    if (verdict := _one_long_word(text, matches)) is not None:
        return verdict
    words = [m.group() for m in matches]
    starts = [m.start() for m in matches]
    return _periodic(words, starts) or _no_news(words, starts) or _NOTHING


def _one_long_word(text: str, matches: list[re.Match[str]]) -> LoopVerdict | None:
    """A stream of characters without spaces that repeats ("hahaha...", "0000...")."""
    last = matches[-1].group()
    if len(last) < 400:
        return None
    period = _tail_period(list(last[-4000:]))
    if period is None or period > 40:
        return None
    repeats = len(last) / period
    return LoopVerdict(
        LoopKind.CONFIRMED,
        f"{period} characters repeated {repeats:.0f} times without a space",
        matches[-1].start(),
        1,
        repeats,
    )


def _periodic(words: list[str], starts: list[int]) -> LoopVerdict | None:
    tail = words[-_MAX_PERIOD * _MIN_REPEATS :]
    period = _tail_period(tail)
    if period is None:
        return None
    length = _run_length(words, period)
    repeats = length / period
    if repeats < _MIN_REPEATS or length < _MIN_REPEATED_WORDS:
        return None
    return LoopVerdict(
        LoopKind.CONFIRMED,
        f"the last {length} words are {period} words repeated {repeats:.1f} times",
        starts[len(words) - length],
        period,
        repeats,
    )


def _tail_period(items: list[str]) -> int | None:
    """The shortest period p such that the items end in at least `_MIN_REPEATS` repeats of it.

    On the reversed list the prefix function gives, for each length, the shortest period of that
    suffix (Knuth, Morris, Pratt 1977); a suffix of n items with period p repeats n / p times.
    """
    reverse = items[::-1]
    border = [0] * len(reverse)
    best: int | None = None
    for i in range(1, len(reverse)):
        k = border[i - 1]
        while k and reverse[i] != reverse[k]:
            k = border[k - 1]
        border[i] = k + 1 if reverse[i] == reverse[k] else 0
        length = i + 1
        period = length - border[i]
        if length >= _MIN_REPEATS * period and length >= min(_MIN_REPEATED_WORDS, len(items)):
            best = period
    return best


def _run_length(words: list[str], period: int) -> int:
    """How many words at the end follow the period."""
    i = len(words) - 1
    while i - period >= 0 and words[i] == words[i - period]:
        i -= 1
    return len(words) - 1 - i + period


def _no_news(words: list[str], starts: list[int]) -> LoopVerdict | None:
    if len(words) < 2 * _WINDOW:
        return None
    masked = _masked(words)
    edge = len(words) - _WINDOW
    grams = [tuple(masked[i : i + _N]) for i in range(len(masked) - _N + 1)]
    seen: set[tuple[str, ...]] = set()
    fresh: list[bool] = []
    for gram in grams:
        fresh.append(gram not in seen)
        seen.add(gram)
    window = fresh[edge:]
    news = sum(window) / len(window)
    if news >= _SUSPECT_BOUND:
        return None
    kind = LoopKind.CONFIRMED if news < _NEWS_BOUND else LoopKind.SUSPECTED
    why = f"{news:.0%} of the last {_WINDOW} words say something new"
    return LoopVerdict(kind, why, starts[_first_stale(fresh, edge)], news=news)


def _first_stale(fresh: list[bool], edge: int) -> int:
    """Where the stale stretch that reaches `edge` begins, in steps of 100 words."""
    begin = edge
    while begin >= 100 and sum(fresh[begin - 100 : begin]) < 100 * _SUSPECT_BOUND:
        begin -= 100
    return begin


def _masked(words: list[str]) -> list[str]:
    """Words in lower case, digits masked where fewer than one word in eight has any."""
    has_digit = [any(c.isdigit() for c in word) for word in words]
    block = 64
    out: list[str] = []
    edges = [*range(0, len(words), block), len(words)]
    for a, b in pairwise(edges):
        prose = sum(has_digit[a:b]) * 8 < b - a
        out += [_DIGITS.sub("#", w).lower() if prose else w.lower() for w in words[a:b]]
    return out


class LoopWatch:
    """Watches a stream and says when a hard loop is certain, looking only every `every` words."""

    def __init__(self, every_chars: int = 4000) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._next = self._every = every_chars

    def add(self, text: str) -> LoopVerdict | None:
        """Take a piece; a confirmed verdict, or None."""
        self._parts.append(text)
        self._size += len(text)
        if self._size < self._next:
            return None
        self._next = self._size + max(self._every, self._size // 8)
        verdict = detect_loop("".join(self._parts))
        return verdict if verdict.kind is LoopKind.CONFIRMED else None
