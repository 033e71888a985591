"""Which experts should hold the correction pool's slots: a step's routing in, moves out.

Pure: a policy keeps nothing and touches nothing, so the same routing gives the same moves, and a
trace can be simulated without weights. Experts are numbered ``layer * experts + expert`` across the
whole model: layers compete for slots, since each sees every token and their heats compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Heats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Steps = npt.NDArray[np.int64]

S = TypeVar("S")

NEVER = -(2**62)


@dataclass(frozen=True)
class Move:
    """Give ``promote`` a slot: a free one, or the one that ``evict`` holds."""

    promote: int
    evict: int | None = None


@dataclass(frozen=True)
class PoolView:
    """The pool as a policy sees it between two steps.

    Attributes:
        resident: [K] holds a slot, or is being given one.
        pinned: [K] must keep its slot (a request or a step depends on it, or it is loading).
        free: slots that nobody holds.
    """

    resident: Flags
    pinned: Flags
    free: int


class Policy(Protocol[S]):
    """Decides after each step. ``S`` is the policy's memory: a value, never changed in place."""

    def start(self, keys: int, heat: Heats | None = None) -> S:
        """The memory of a policy that has seen nothing of ``keys`` experts, or what `heat` told."""

    def heat(self, state: S) -> Heats:
        """[K] how much each expert is wanted in the pool: order matters, 0 is never used.

        What is saved for the next start, and who gives way where room must be made at once.
        """

    def decide(self, state: S, counts: Counts, pool: PoolView) -> tuple[S, tuple[Move, ...]]:
        """What to move after a step that used expert k ``counts[k]`` times.

        No expert is named twice, none that is resident is promoted, none pinned is evicted, and
        there are at most ``pool.free`` moves without a victim.
        """


def step_counts(ids: npt.NDArray[np.integer], experts: int) -> Counts:
    """How often each of a layer's experts was chosen; ids below zero are padding. -> [experts]."""
    chosen = ids.reshape(-1)
    return np.bincount(chosen[chosen >= 0], minlength=experts).astype(np.int64)


@dataclass(frozen=True)
class Frequency:
    """The pool holds the experts used most often of late.

    Heat is a count of uses that halves every ``half_life_steps`` steps. Only steps that used some
    expert count: an engine that idles overnight forgets nothing.

    Attributes:
        half_life_steps: steps in which a heat halves.
        hysteresis, margin: who takes a resident's slot must be hotter by this factor over one, and
            by this many uses more. Without them, experts of equal use take turns for nothing.
        per_step: promotions after one step; None: any number. Bounds the traffic beside a step.
        stay_steps: steps for which who was promoted keeps its slot.
        saturation: uses by one step beyond this add nothing, so one long prompt, which uses
            every expert many times, does not outweigh what decoding uses all the time. None: all.
    """

    half_life_steps: float = 256.0
    hysteresis: float = 0.25
    margin: float = 1.0
    per_step: int | None = 8
    stay_steps: int = 16
    saturation: int | None = 4

    def __post_init__(self) -> None:
        for name, low in (
            ("half_life_steps", 1e-9),
            ("hysteresis", 0),
            ("margin", 0),
            ("per_step", 0),
            ("stay_steps", 0),
            ("saturation", 1),
        ):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ValueError(f"{name}: {value} is below {low}")

    def start(self, keys: int, heat: Heats | None = None) -> FrequencyState:
        """All cold, or as hot as they were."""
        heat = np.zeros(keys) if heat is None else heat.copy()
        return FrequencyState(heat, np.full(keys, NEVER, np.int64))

    def heat(self, state: FrequencyState) -> Heats:
        """Decayed uses."""
        return state.heat

    def decide(
        self, state: FrequencyState, counts: Counts, pool: PoolView
    ) -> tuple[FrequencyState, tuple[Move, ...]]:
        """The hottest outsiders for free slots, then for those of the coldest residents."""
        if not counts.any():
            return state, ()
        heat = self.warmed(state.heat, counts)
        step = state.step + 1
        moves = self._moves(heat, step - state.promoted_at < self.stay_steps, pool)
        promoted_at = state.promoted_at
        if moves:
            promoted_at = promoted_at.copy()
            promoted_at[[move.promote for move in moves]] = step
        return FrequencyState(heat, promoted_at, step), moves

    def warmed(self, heat: Heats, counts: Counts) -> Heats:
        """The heats after a step with these uses."""
        uses = counts if self.saturation is None else np.minimum(counts, self.saturation)
        warmed: Heats = heat * 0.5 ** (1.0 / self.half_life_steps) + uses
        return warmed

    def _moves(self, heat: Heats, settling: Flags, pool: PoolView) -> tuple[Move, ...]:
        budget = len(heat) if self.per_step is None else self.per_step
        outsiders = hottest(heat, ~pool.resident & (heat > 0), budget)
        moves = [Move(key) for key in outsiders[: pool.free]]
        # a key promoted a moment ago and not resident has failed to load: free to try, not to lose
        coldest = hottest(-heat, pool.resident & ~pool.pinned & ~settling, budget)
        for hot, cold in zip(outsiders[pool.free :], coldest, strict=False):
            if not heat[hot] > heat[cold] * (1 + self.hysteresis) + self.margin:
                break  # every later pair is closer still
            moves.append(Move(hot, cold))
        return tuple(moves)


@dataclass(frozen=True)
class FrequencyState:
    """What `Frequency` remembers: decayed uses, and the step of each expert's last promotion."""

    heat: Heats
    promoted_at: Steps
    step: int = field(default=0)


@dataclass(frozen=True)
class Lru:
    """The pool holds the experts used last: every step's experts go in, the longest unused go out.

    What most caches do, and what `Frequency` is measured against.

    Attributes:
        per_step: promotions after one step; None: any number.
    """

    per_step: int | None = 8

    def start(self, keys: int, heat: Heats | None = None) -> LruState:
        """Nobody used yet, or last used in the order of `heat`."""
        last = np.zeros(keys, np.int64)
        if heat is None:
            return LruState(last)
        used = np.flatnonzero(heat > 0)
        last[used[np.argsort(heat[used], kind="stable")]] = np.arange(1, len(used) + 1)
        return LruState(last, len(used))

    def heat(self, state: LruState) -> Heats:
        """The step of the last use."""
        return state.last.astype(np.float64)

    def decide(
        self, state: LruState, counts: Counts, pool: PoolView
    ) -> tuple[LruState, tuple[Move, ...]]:
        """Who was used now and is outside, most used first, for free slots or the longest unused's.

        An expert used in this step does not give way to another of it.
        """
        if not counts.any():
            return state, ()
        step = state.step + 1
        last = np.where(counts > 0, step, state.last)
        budget = len(last) if self.per_step is None else self.per_step
        outside = hottest(counts.astype(np.float64), ~pool.resident & (counts > 0), budget)
        leaving = hottest(
            -last.astype(np.float64), pool.resident & ~pool.pinned & (counts == 0), budget
        )
        return LruState(last, step), _matched(outside, leaving, pool.free)


@dataclass(frozen=True)
class LruState:
    """The step of each expert's last use; 0: never."""

    last: Steps
    step: int = field(default=0)


@dataclass(frozen=True)
class Need:
    """Nobody moves by use alone: only what a step cannot do without is brought in (`room_for`).

    Uses are counted all the same: they decide who makes room.
    """

    counting: Frequency = field(default_factory=Frequency)

    def start(self, keys: int, heat: Heats | None = None) -> Heats:
        """All cold, or as hot as they were."""
        return np.zeros(keys) if heat is None else heat.copy()

    def heat(self, state: Heats) -> Heats:
        """Decayed uses."""
        return state

    def decide(
        self, state: Heats, counts: Counts, pool: PoolView
    ) -> tuple[Heats, tuple[Move, ...]]:
        """Count, and no moves."""
        return (self.counting.warmed(state, counts) if counts.any() else state), ()


@dataclass(frozen=True)
class Fixed:
    """Nobody moves: the pool keeps what it was loaded with."""

    def start(self, keys: int, heat: Heats | None = None) -> Heats:
        """What decides who is loaded."""
        return np.zeros(keys) if heat is None else heat.copy()

    def heat(self, state: Heats) -> Heats:
        """As it was given."""
        return state

    def decide(
        self, state: Heats, counts: Counts, pool: PoolView
    ) -> tuple[Heats, tuple[Move, ...]]:
        """No moves."""
        return state, ()


def room_for(
    wanted: Sequence[int], heat: Heats, pool: PoolView, *, protect: float = 0.0
) -> tuple[Move, ...]:
    """Moves that bring in experts which are needed now, as many as there is room for, in order.

    Free slots first, then those of the coldest that are neither pinned nor wanted themselves.

    Args:
        wanted: experts; those that hold a slot already are passed over.
        heat: `Policy.heat`.
        protect: share of the residents, the hottest, whose slots are not taken: one long prompt
            should not throw out what decoding lives on.
    """
    outside = [key for key in dict.fromkeys(wanted) if not pool.resident[key]]
    among = pool.resident & ~pool.pinned
    among[list(wanted)] = False
    resident = int(pool.resident.sum())
    coldest = hottest(-heat, pool.resident, resident - math.ceil(protect * resident))
    leaving = [key for key in coldest if among[key]]
    return _matched(outside, leaving, pool.free)


def _matched(outside: Sequence[int], leaving: Sequence[int], free: int) -> tuple[Move, ...]:
    """Free slots for the first, then one leaving for one entering."""
    pairs = zip(outside[free:], leaving, strict=False)
    return (*map(Move, outside[:free]), *(Move(hot, cold) for hot, cold in pairs))


def hottest(heat: Heats, among: Flags, count: int) -> list[int]:
    """Up to ``count`` of the keys ``among``, hottest first; of equals the lower number first."""
    keys = np.flatnonzero(among)
    if count < len(keys):  # a partial sort; ties at its edge are kept until the full one below
        edge = -np.partition(-heat[keys], count)[count]
        keys = keys[heat[keys] >= edge]
    order = np.argsort(-heat[keys], kind="stable")[:count]
    return [int(key) for key in keys[order]]
