"""The frequency policy on routing traces: it follows what is hot, and only that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.tiers.policy import (
    Fixed,
    Frequency,
    Lru,
    Move,
    Need,
    Policy,
    PoolView,
    hottest,
    room_for,
    step_counts,
)


class Simulated:
    """A pool without weights, driven by a policy, that refuses every unlawful move."""

    def __init__(self, policy: Policy[Any], keys: int, slots: int, pinned: Iterable[int] = ()):
        self.policy = policy
        self.slots = slots
        self.state: Any = policy.start(keys)
        self.resident = np.zeros(keys, bool)
        self.pinned = np.zeros(keys, bool)
        self.pinned[list(pinned)] = True
        self.promoted_at: dict[int, int] = {}
        self.steps = 0
        self.moved: list[int] = []

    def step(self, counts: np.ndarray) -> tuple[Move, ...]:
        free = self.slots - int(self.resident.sum())
        view = PoolView(self.resident.copy(), self.pinned & self.resident, free)
        self.state, moves = self.policy.decide(self.state, counts, view)
        self.steps += bool(counts.any())
        for move in moves:
            assert not self.resident[move.promote]
            if move.evict is not None:
                assert self.resident[move.evict]
                assert not self.pinned[move.evict], "evicts a pinned expert"
                stayed = self.steps - self.promoted_at[move.evict]
                least = getattr(self.policy, "stay_steps", 0)
                assert stayed >= least, "evicts a just promoted expert"
                self.resident[move.evict] = False
            self.resident[move.promote] = True
            self.promoted_at[move.promote] = self.steps
        assert self.resident.sum() <= self.slots, "more residents than slots"
        budget = getattr(self.policy, "per_step", None)
        if budget is not None:
            assert len(moves) <= budget, "over budget"
        self.moved.append(len(moves))
        return moves

    def hits(self, counts: np.ndarray) -> float:
        return float(counts[self.resident].sum() / counts.sum())


def zipf(random: np.random.Generator, keys: int, uses: int, order: np.ndarray) -> np.ndarray:
    weights = 1.0 / np.arange(1, keys + 1)
    drawn = random.choice(keys, uses, p=weights / weights.sum())
    return np.bincount(order[drawn], minlength=keys)


def test_on_zipf_routing_the_pool_comes_close_to_the_best_fixed_set_and_settles() -> None:
    random = np.random.default_rng(1)
    keys, slots = 200, 40
    order = random.permutation(keys)
    pool = Simulated(Frequency(), keys, slots)
    for _ in range(3000):
        counts = zipf(random, keys, 12, order)
        pool.step(counts)
    later = [zipf(random, keys, 12, order) for _ in range(500)]
    best = np.zeros(keys, bool)
    best[order[:slots]] = True
    got = np.mean([pool.hits(counts) for counts in later])
    ideal = np.mean([counts[best].sum() / counts.sum() for counts in later])
    assert got > 0.95 * ideal
    assert sum(pool.moved[-1000:]) < 100, "keeps moving although nothing changed"


def test_when_the_hot_set_shifts_the_pool_follows_within_a_few_half_lives() -> None:
    random = np.random.default_rng(2)
    keys, slots = 200, 20
    policy = Frequency(half_life_steps=64)
    pool = Simulated(policy, keys, slots)
    for start in (0, 100):
        hot = np.arange(start, start + slots)
        for _ in range(256):
            pool.step(np.bincount(random.choice(hot, 12), minlength=keys))
        assert set(np.flatnonzero(pool.resident)) == set(hot)


@pytest.mark.parametrize("period", [1, 2, 10, 50])
def test_two_sets_that_alternate_for_the_same_slots_do_not_thrash(period: int) -> None:
    slots = 16
    sets = [np.repeat([1, 0], slots), np.repeat([0, 1], slots)]
    pool = Simulated(Frequency(), 2 * slots, slots)
    for step in range(4000):
        pool.step(sets[step // period % 2])
    warm_up = 1500
    assert sum(pool.moved[warm_up:]) == 0


def test_sets_that_take_turns_for_long_cost_one_move_a_slot_and_turn() -> None:
    slots, period = 16, 2000
    sets = [np.repeat([1, 0], slots), np.repeat([0, 1], slots)]
    pool = Simulated(Frequency(), 2 * slots, slots)
    for step in range(4 * period):
        pool.step(sets[step // period % 2])
    for turn in range(4):
        assert sum(pool.moved[turn * period : (turn + 1) * period]) == slots


def test_a_long_prompt_does_not_evict_what_decoding_uses() -> None:
    keys, slots = 100, 10
    hot = np.repeat([1, 0], [slots, keys - slots])
    pool = Simulated(Frequency(), keys, slots)
    for _ in range(100):
        pool.step(hot)
    pool.step(500 * (1 - hot))
    for _ in range(100):
        pool.step(hot)
    assert set(np.flatnonzero(pool.resident)) == set(range(slots))
    assert sum(pool.moved) == slots


traces = st.lists(
    st.lists(st.integers(0, 6), min_size=12, max_size=12).map(np.array), min_size=1, max_size=60
)
policies = st.builds(
    Frequency,
    half_life_steps=st.floats(0.5, 100),
    hysteresis=st.floats(0, 1),
    margin=st.floats(0, 2),
    per_step=st.none() | st.integers(0, 4),
    stay_steps=st.integers(0, 8),
    saturation=st.none() | st.integers(1, 4),
)


@given(policy=policies, trace=traces, slots=st.integers(0, 12), pinned=st.sets(st.integers(0, 11)))
def test_any_trace_keeps_the_laws_and_is_decided_the_same_way_again(
    policy: Frequency, trace: list[np.ndarray], slots: int, pinned: set[int]
) -> None:
    first = Simulated(policy, 12, slots, pinned)
    again = Simulated(policy, 12, slots, pinned)
    for counts in trace:
        before = (first.state.heat.copy(), first.state.promoted_at.copy(), first.state)
        assert first.step(counts) == again.step(counts)
        assert (before[2].heat == before[0]).all(), "a state was changed in place"
        assert (before[2].promoted_at == before[1]).all(), "a state was changed in place"


@given(policy=policies, trace=traces, slots=st.integers(0, 12))
def test_an_idle_step_changes_nothing(
    policy: Frequency, trace: list[np.ndarray], slots: int
) -> None:
    pool = Simulated(policy, 12, slots)
    for counts in trace:
        pool.step(counts)
    state = pool.state
    assert pool.step(np.zeros(12, int)) == ()
    assert pool.state is state


@settings(max_examples=50)
@given(
    counts=st.permutations(range(12)).map(np.array),
    other=st.lists(st.integers(0, 6), min_size=12, max_size=12).map(np.array),
    slots=st.integers(0, 12),
)
def test_without_a_budget_a_stationary_trace_ends_with_exactly_the_top_n(
    counts: np.ndarray, other: np.ndarray, slots: int
) -> None:
    policy = Frequency(
        half_life_steps=8, hysteresis=0, margin=0, per_step=None, stay_steps=2, saturation=None
    )
    pool = Simulated(policy, 12, slots)
    for past in [other] * 5 + [counts] * 200:
        pool.step(past)
    used = {int(key) for key in np.argsort(-counts)[:slots] if counts[key]}
    assert used <= set(np.flatnonzero(pool.resident))


@given(
    counts=st.lists(st.integers(0, 9), min_size=12, max_size=12).map(np.array),
    slots=st.integers(1, 12),
    hysteresis=st.floats(0, 1),
    margin=st.floats(0, 3),
)
def test_at_rest_no_outsider_beats_a_resident_by_more_than_hysteresis_and_margin(
    counts: np.ndarray, slots: int, hysteresis: float, margin: float
) -> None:
    policy = Frequency(half_life_steps=4, hysteresis=hysteresis, margin=margin, saturation=None)
    pool = Simulated(policy, 12, slots)
    for _ in range(100):
        pool.step(counts)
    heat, inside = pool.state.heat, pool.resident
    if inside.any() and not inside.all():
        assert heat[~inside].max() <= heat[inside].min() * (1 + hysteresis) + margin


def test_a_promotion_that_failed_is_tried_again() -> None:
    policy = Frequency()
    counts, nobody = np.array([3, 0]), np.zeros(2, bool)
    state = policy.start(2)
    for _ in range(3):
        state, moves = policy.decide(state, counts, PoolView(nobody, nobody, 1))
        assert moves == (Move(0),)


def test_what_to_preload_is_the_hottest_used_ones() -> None:
    policy = Frequency()
    nobody = np.zeros(4, bool)
    state, _ = policy.decide(policy.start(4), np.array([1, 0, 3, 1]), PoolView(nobody, nobody, 0))
    heat = policy.heat(state)
    assert hottest(heat, heat > 0, 2) == [2, 0]
    assert hottest(heat, heat > 0, 9) == [2, 0, 3]


@pytest.mark.parametrize("policy", [Frequency(), Lru(), Need(), Fixed()])
def test_what_was_hot_is_as_hot_after_a_restart(policy: Policy[Any]) -> None:
    told = np.array([0.0, 3.0, 1.0, 0.0, 7.0])
    heat = policy.heat(policy.start(5, told))
    assert hottest(heat, heat > 0, 5) == [4, 1, 2]
    assert not policy.heat(policy.start(5)).any()


def hit_rate(policy: Policy[Any], trace: Iterable[np.ndarray], keys: int, slots: int) -> float:
    """Share of the uses of the later half of a trace whose expert had a slot."""
    pool = Simulated(policy, keys, slots)
    rates = []
    for counts in trace:
        rates.append(pool.hits(counts))
        pool.step(counts)
    return float(np.mean(rates[len(rates) // 2 :]))


def decoding(keys: int, steps: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    order = random.permutation(keys)
    return [zipf(random, keys, 12, order) for _ in range(steps)]


def with_long_prompts(keys: int, steps: int) -> list[np.ndarray]:
    """Decoding, and every 20 steps a prompt that uses every expert."""
    return [
        counts + 40 if number % 20 == 10 else counts
        for number, counts in enumerate(decoding(keys, steps))
    ]


@pytest.mark.parametrize("trace", [decoding, with_long_prompts])
def test_frequency_beats_lru_and_lru_beats_an_arbitrary_fixed_set(
    trace: Callable[[int, int], list[np.ndarray]],
) -> None:
    keys, slots = 200, 40
    steps = trace(keys, 1200)
    frequency = hit_rate(Frequency(), steps, keys, slots)
    lru = hit_rate(Lru(), steps, keys, slots)
    assert frequency > lru + 0.05
    assert lru > slots / keys + 0.05, "no better than any set of that size"


def test_lru_takes_the_longest_unused_and_never_one_of_the_same_step() -> None:
    pool = Simulated(Lru(), 4, 2)
    for used in ([0], [1], [2], [0, 2]):
        pool.step(np.bincount(used, minlength=4))
    assert set(np.flatnonzero(pool.resident)) == {0, 2}
    pool.step(np.array([1, 1, 1, 0]))
    assert set(np.flatnonzero(pool.resident)) == {0, 2}, "who is used gives way to nobody"


def test_need_moves_nobody_and_still_knows_who_is_hot() -> None:
    pool = Simulated(Need(), 4, 2)
    for _ in range(5):
        pool.step(np.array([0, 2, 1, 0]))
    assert not pool.resident.any()
    assert hottest(pool.policy.heat(pool.state), np.ones(4, bool), 2) == [1, 2]


def test_room_is_made_by_the_coldest_that_is_not_wanted_or_pinned() -> None:
    resident = np.array([1, 1, 1, 1, 0, 0, 0], bool)
    pinned = np.array([1, 0, 0, 0, 0, 0, 0], bool)
    heat = np.array([0.0, 1, 2, 9, 5, 5, 5])
    view = PoolView(resident, pinned, free=1)
    assert room_for([4, 1, 5], heat, view) == (Move(4), Move(5, 2))
    assert room_for([4, 5, 6], heat, view) == (Move(4), Move(5, 1), Move(6, 2))
    assert room_for([4, 5, 6], heat, view, protect=0.5) == (Move(4), Move(5, 1))
    assert room_for([4, 5, 6], heat, view, protect=1.0) == (Move(4),)
    assert room_for([0, 1], heat, view) == ()


@given(
    heat=st.lists(st.floats(0, 9), min_size=8, max_size=8).map(np.array),
    resident=st.lists(st.booleans(), min_size=8, max_size=8).map(np.array),
    wanted=st.lists(st.integers(0, 7), max_size=12),
    free=st.integers(0, 3),
    protect=st.floats(0, 1),
)
def test_making_room_keeps_the_laws_of_moves(
    heat: np.ndarray, resident: np.ndarray, wanted: list[int], free: int, protect: float
) -> None:
    moves = room_for(wanted, heat, PoolView(resident, np.zeros(8, bool), free), protect=protect)
    entering = [move.promote for move in moves]
    leaving = [move.evict for move in moves if move.evict is not None]
    assert len(set(entering)) == len(entering)
    assert len(set(leaving)) == len(leaving)
    assert not resident[entering].any()
    assert resident[leaving].all()
    assert not set(leaving) & set(wanted)
    assert len(moves) - len(leaving) <= free


def test_padding_is_not_counted() -> None:
    counts = step_counts(np.array([[0, 2], [-1, 2], [-1, -1]]), 4)
    assert counts.tolist() == [1, 0, 2, 0]


def test_a_fixed_pool_never_moves() -> None:
    nobody = np.zeros(3, bool)
    policy = Fixed()
    _, moves = policy.decide(policy.start(3), np.array([9, 9, 9]), PoolView(nobody, nobody, 3))
    assert moves == ()


@pytest.mark.parametrize(
    ("name", "value"), [("half_life_steps", 0), ("hysteresis", -1), ("saturation", 0)]
)
def test_settings_without_sense_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Frequency(**{name: value})  # type: ignore[arg-type]
