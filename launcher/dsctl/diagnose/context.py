"""What the engine was doing when a line was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dsctl.diagnose.schema import ContextFile, Pattern

#: The state of a group of which nothing has been seen.
UNSEEN = "unseen"


@dataclass(frozen=True, eq=False)
class Sign:
    """What finding a pattern tells of the engine's doing: groups it resets, states it shows."""

    literals: tuple[str, ...]
    resets: tuple[str, ...]
    shows: tuple[tuple[str, str], ...]


class Contexts:
    """The state of each context group, kept up as lines are seen."""

    def __init__(self, contexts: ContextFile) -> None:
        self._groups = {group.name: group for group in contexts.groups}
        self._ranks = {
            name: {state.name: rank for rank, state in enumerate(group.states)}
            for name, group in self._groups.items()
        }
        self._now = dict.fromkeys(self._groups, UNSEEN)
        resets: dict[Pattern, list[str]] = defaultdict(list)
        shows: dict[Pattern, list[tuple[str, str]]] = defaultdict(list)
        for group in contexts.groups:
            for pattern in group.reset:
                resets[pattern].append(group.name)
            for state in group.states:
                for pattern in state.lines:
                    shows[pattern].append((group.name, state.name))
        self.signs = {
            pattern: Sign(pattern.has, tuple(resets[pattern]), tuple(shows[pattern]))
            for pattern in dict.fromkeys([*resets, *shows])
        }
        self._telling: dict[tuple[str, str], frozenset[str]] = {}

    def see(self, found: Collection[Sign]) -> set[str]:
        """Take the signs that were found in the next line; the groups whose state changed."""
        changed: set[str] = set()
        for sign in found:
            for name in sign.resets:
                if self._now[name] != UNSEEN:
                    self._now[name] = UNSEEN
                    changed.add(name)
        for sign in found:
            for name, state in sign.shows:
                if self._would_change(name, state):
                    self._now[name] = state
                    changed.add(name)
        return changed

    def now(self, name: str) -> str:
        """The state of a group."""
        return self._now.get(name, UNSEEN)

    def forget(self) -> set[str]:
        """Begin anew; the groups whose state changed."""
        changed = {name for name, state in self._now.items() if state != UNSEEN}
        self._now.update(dict.fromkeys(changed, UNSEEN))
        return changed

    def is_inert(self, sign: Sign) -> bool:
        """Whether seeing the sign now would change nothing."""
        for name in sign.resets:
            if self._now[name] != UNSEEN:
                return False
        return all(not self._would_change(name, state) for name, state in sign.shows)

    def telling(self, name: str) -> frozenset[str]:
        """Literals of the lines that would change the state which the group is in now."""
        key = (name, self._now[name])
        if key not in self._telling:
            self._telling[key] = frozenset(
                literal
                for sign in self.signs.values()
                if self._concerns(sign, name) and not self.is_inert(sign)
                for literal in sign.literals
            )
        return self._telling[key]

    def fit(self, wanted: Mapping[str, Collection[str]]) -> bool:
        """Whether every group named is in one of its wanted states (`unseen` may be wanted)."""
        return all(self._now[name] in states for name, states in wanted.items())

    def _would_change(self, name: str, state: str) -> bool:
        now = self._now[name]
        if now == UNSEEN or not self._groups[name].reset:
            return state != now
        return self._ranks[name][state] > self._ranks[name][now]

    @staticmethod
    def _concerns(sign: Sign, name: str) -> bool:
        return name in sign.resets or any(group == name for group, _ in sign.shows)
