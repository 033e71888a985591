"""Finds, in one fast pass, which of some hundred literals stand in a text (Aho–Corasick)."""

from __future__ import annotations

from collections.abc import Iterable

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation


class Prefilter:
    """A fixed set of ASCII literals to look for, in bytes or in text, each known by its index."""

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(sorted(set(literals)))
        self.index_of = {literal: index for index, literal in enumerate(self.literals)}
        self._bytes = BytesAhoCorasick(
            [text.encode("ascii") for text in self.literals], implementation=Implementation.DFA
        )
        self._text = AhoCorasick(self.literals)

    def hits_in_bytes(self, data: bytes) -> list[tuple[int, int, int]]:
        """(index, start, end) of every literal in `data`, overlapping ones too, ordered by end."""
        return self._bytes.find_matches_as_indexes(data, overlapping=True)

    def hits_in(self, text: str) -> list[tuple[int, int, int]]:
        """(index, start, end) of every literal in `text`, overlapping ones too, ordered by end."""
        return self._text.find_matches_as_indexes(text, overlapping=True)
