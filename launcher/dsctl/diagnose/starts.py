"""Which of the engine starts in a log failed, and with what. Pure, in bounded memory.

The log of a deployment holds one start after another. Of those that are over, the last that failed
is kept, and of every cause the last start that showed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsctl.diagnose.following import Line, Match


@dataclass(frozen=True)
class Start:
    """What one start shows. `number` counts from 1."""

    number: int
    matches: tuple[Match, ...] = ()
    unexplained: tuple[Line, ...] = ()
    #: A line passed on a failure that the log does not show.
    troubled: bool = False

    @property
    def failed(self) -> bool:
        """Whether something went wrong in it, known or not."""
        return bool(self.matches or self.unexplained or self.troubled)


@dataclass
class History:
    """The starts that are over."""

    #: How many, failed or not.
    count: int = 0
    last_failed: Start | None = None
    #: Cause id -> the last start that showed it and its matches there.
    shown: dict[str, tuple[int, tuple[Match, ...]]] = field(default_factory=dict)

    def add(self, start: Start) -> None:
        """Take a start that is over."""
        self.count += 1
        if start.failed:
            self.last_failed = start
        for cause_id, matches in by_cause(start.matches).items():
            self.shown[cause_id] = (start.number, tuple(matches))

    def judged(self, now: Start) -> Start:
        """The start whose failure is to be named: the last that failed, or the last at all."""
        if now.failed or self.last_failed is None:
            return now
        return self.last_failed


def by_cause(matches: Sequence[Match]) -> dict[str, list[Match]]:
    """The matches of each cause."""
    sorted_: dict[str, list[Match]] = {}
    for match in matches:
        sorted_.setdefault(match.cause_id, []).append(match)
    return sorted_
