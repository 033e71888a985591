"""The base cache, its arena and streams: bounded, scan-resistant, and the same bytes always."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.tiers import hostmem
from dsruntime.tiers.arena import Arena, Wanted
from dsruntime.tiers.cache import BaseCache, divide
from dsruntime.tiers.hostmem import host_memory
from dsruntime.tiers.passes import Mode, Pass

LAYERS, EXPERTS, ROW = 3, 6, 16
KEYS = LAYERS * EXPERTS
NONE_STANDS = np.zeros(EXPERTS, bool)


class Pack:
    """Rows by formula, with some that cannot be read; remembers what was read."""

    def __init__(self, damaged: frozenset[int] = frozenset()) -> None:
        self.damaged = set(damaged)
        self.reads: list[int] = []
        self._lock = threading.Lock()

    @staticmethod
    def row(key: int) -> np.ndarray:
        return (np.arange(ROW) * 7 + key * 31 + 1).astype(np.uint8)

    def __call__(self, key: int, out: np.ndarray) -> None:
        with self._lock:
            self.reads.append(key)
        out[: ROW // 2] = 0xA5  # a reader that fails leaves half a row behind
        if key in self.damaged:
            raise OSError(f"row {key} is damaged")
        out[:] = self.row(key)


def an_arena(pack: Pack, rows: int) -> Arena:
    return Arena(host_memory(rows, ROW), pack, threads=2)


def a_cache(pack: Pack, slots: int, arena_rows: int = 0, scratch: int = 2) -> BaseCache:
    rows = slots + scratch
    assert divide(rows * ROW, ROW, KEYS).slots == min(slots, KEYS)
    return BaseCache(LAYERS, EXPERTS, ROW, rows * ROW, an_arena(pack, arena_rows))


@pytest.fixture
def closing() -> Iterator[Callable[[BaseCache], BaseCache]]:
    made: list[BaseCache] = []
    yield lambda cache: made.append(cache) or cache  # type: ignore[func-returns-value]
    for cache in made:
        cache.close()


def fetched(arena: Arena, keys: list[int], *, scan: bool = False) -> dict[int, Exception]:
    """Fetch these and hold every one that came against the pack."""
    outs = {key: np.zeros(ROW, np.uint8) for key in keys}
    errors = arena.fetch([Wanted(key, out) for key, out in outs.items()], scan=scan)
    for key in outs.keys() - errors.keys():
        assert (outs[key] == Pack.row(key)).all()
    return errors


def test_a_row_in_the_arena_is_not_read_again() -> None:
    pack = Pack()
    arena = an_arena(pack, 4)
    fetched(arena, [1, 2])
    fetched(arena, [2, 3, 1])
    assert sorted(pack.reads) == [1, 2, 3]
    assert (arena.counters.hits, arena.counters.misses) == (2, 3)
    assert arena.counters.read_bytes == 3 * ROW
    arena.close()


def test_without_room_rows_go_straight_to_where_they_are_wanted() -> None:
    pack = Pack()
    arena = an_arena(pack, 0)
    for _ in range(2):
        fetched(arena, [1, 2])
    assert sorted(pack.reads) == [1, 1, 2, 2]
    arena.close()


@settings(max_examples=60)
@given(
    rows=st.integers(0, 6),
    warm=st.lists(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4, unique=True)),
    scans=st.lists(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=9, unique=True)),
    damaged=st.frozensets(st.integers(0, KEYS - 1), max_size=3),
)
def test_no_scan_displaces_a_row_or_makes_one_younger(
    rows: int, warm: list[list[int]], scans: list[list[int]], damaged: frozenset[int]
) -> None:
    arena = an_arena(Pack(damaged), rows)
    for batch in warm:
        assert fetched(arena, batch).keys() == damaged & set(batch)
    before = arena.keys
    for batch in scans:
        assert fetched(arena, batch, scan=True).keys() == damaged & set(batch)
    assert [key for key in arena.keys if key in before] == list(before)
    assert len(arena.keys) <= rows
    assert not damaged & set(arena.keys), "a row that could not be read is kept"
    for key in arena.keys:  # whatever is kept is whole
        fetched(arena, [key])
    arena.close()


def test_when_decoding_needs_room_the_rows_of_scans_go_first() -> None:
    arena = an_arena(Pack(), 3)
    fetched(arena, [1])
    fetched(arena, [8, 9], scan=True)
    fetched(arena, [2, 3])
    assert set(arena.keys) == {1, 2, 3}
    arena.close()


@pytest.mark.parametrize(
    ("rows", "slots", "scratch"), [(4, 2, 2), (16, 14, 2), (40, 36, 4), (400, 368, 32)]
)
def test_a_budget_is_divided_into_slots_and_scratch_and_never_exceeded(
    rows: int, slots: int, scratch: int
) -> None:
    sizes = divide(rows * ROW + ROW - 1, ROW, 10_000)
    assert (sizes.slots, sizes.scratch) == (slots, scratch)


def test_a_budget_of_three_rows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"base_cache_gib: .* hold 3 experts .* at least 4"):
        divide(4 * ROW - 1, ROW, 10_000)


class Model:
    """Layers that route by what came before, so an expert left out misleads the layers after it."""

    def __init__(self, cache: BaseCache, ids: np.ndarray) -> None:
        self.cache = cache
        self.ids = ids  # [LAYERS, T, k]

    def forward(self) -> np.ndarray:
        """[T] what each token has summed up; the last layers' ids depend on it."""
        total = np.zeros(self.ids.shape[1], np.int64)
        for layer, ids in enumerate(self.ids):
            routed = np.where(ids >= 0, (ids + total[:, None]) % EXPERTS, -1)
            admitted = self.cache.admit(layer, routed, NONE_STANDS)
            assert admitted.shape == routed.shape
            for expert in sorted(set(admitted[admitted >= 0].tolist())):
                row = self.cache.row(layer, expert)
                total += (admitted == expert).sum(axis=1) * int(row.astype(np.int64).sum())
        return total

    def truth(self) -> np.ndarray:
        """With everything at hand."""
        total = np.zeros(self.ids.shape[1], np.int64)
        for layer, ids in enumerate(self.ids):
            routed = np.where(ids >= 0, (ids + total[:, None]) % EXPERTS, -1)
            for expert in range(EXPERTS):
                row = Pack.row(layer * EXPERTS + expert)
                total += (routed == expert).sum(axis=1) * int(row.astype(np.int64).sum())
        return total

    def replayed(self) -> tuple[np.ndarray, int]:
        """The answer of the pass that missed nobody, and how many it took."""
        for number in range(1, LAYERS + 2):
            self.cache.begin(Pass.over(KEYS, Mode.REPLAY))
            answer = self.forward()
            if not self.cache.current.missing:
                self.cache.step_done()
                return answer, number
            result = self.cache.fetch(list(self.cache.current.missing))
            assert not result.errors
            assert not result.homeless
        raise AssertionError("more passes than layers and one")

    def streamed(self) -> np.ndarray:
        self.cache.begin(Pass.over(KEYS, Mode.STREAM))
        return self.forward()


routings = st.integers(1, 4).flatmap(
    lambda tokens: st.lists(
        st.lists(st.integers(-1, EXPERTS - 1), min_size=2, max_size=2),
        min_size=LAYERS * tokens,
        max_size=LAYERS * tokens,
    ).map(lambda flat: np.array(flat).reshape(LAYERS, -1, 2))
)


@settings(max_examples=60)
@given(steps=st.lists(routings, min_size=1, max_size=6), arena_rows=st.integers(0, 8))
def test_a_replayed_step_ends_as_if_everything_had_been_there_in_a_pass_per_layer_at_most(
    steps: list[np.ndarray], arena_rows: int
) -> None:
    # four tokens of two experts in each of three layers: 18 slots hold any step
    cache = a_cache(Pack(), KEYS, arena_rows, scratch=2)
    for ids in steps:
        model = Model(cache, ids)
        answer, passes = model.replayed()
        assert (answer == model.truth()).all()
        assert passes <= LAYERS + 1
    cache.close()


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(routings, st.booleans()), min_size=1, max_size=8),
    slots=st.integers(2, KEYS),
    arena_rows=st.integers(0, 8),
)
def test_a_stream_gives_the_right_answer_however_small_the_cache_and_evicts_nobody(
    steps: list[tuple[np.ndarray, bool]], slots: int, arena_rows: int
) -> None:
    cache = BaseCache(LAYERS, EXPERTS, ROW, (slots + 2) * ROW, an_arena(Pack(), arena_rows))
    for ids, decode in steps:
        if decode and ids.shape[1] == 1 and slots >= 2 * LAYERS:
            Model(cache, ids).replayed()
            continue
        before = cache.slots.visible()
        model = Model(cache, ids)
        assert (model.streamed() == model.truth()).all()
        assert (cache.slots.visible() | ~before).all(), "a prompt evicted somebody"
    assert cache.slots.slots <= slots
    cache.close()


def test_the_decode_set_survives_a_long_prompt(closing: Callable[[BaseCache], BaseCache]) -> None:
    cache = closing(a_cache(Pack(), 6))
    decode = Model(cache, np.array([[[0, 1]]] * LAYERS))
    decode.replayed()
    for start in range(40):
        everyone = np.arange(start, start + EXPERTS).reshape(1, -1, 2) % EXPERTS
        Model(cache, np.repeat(everyone, LAYERS, axis=0)).streamed()
    _, passes = decode.replayed()
    assert passes == 1


def test_the_coldest_goes_and_never_one_that_the_step_needs(
    closing: Callable[[BaseCache], BaseCache],
) -> None:
    cache = closing(a_cache(Pack(), 3))

    def step(*experts: int) -> None:
        ids = np.full((LAYERS, 1, 2), -1)
        ids[0, 0, : len(experts)] = experts
        Model(cache, ids).replayed()

    step(0, 1)
    step(0, 1)
    step(2)
    step(3, 0)
    assert np.flatnonzero(cache.slots.visible()).tolist() == [0, 1, 3]
    step(4, 5)
    assert {4, 5} < set(np.flatnonzero(cache.slots.visible()).tolist())


def test_a_row_that_cannot_be_read_marks_the_tokens_that_wanted_it_and_no_others(
    closing: Callable[[BaseCache], BaseCache],
) -> None:
    pack = Pack(frozenset({EXPERTS + 4}))
    cache = closing(a_cache(pack, 4))
    ids = np.array([[0, 4], [1, 2], [-1, 4]])
    cache.begin(Pass.over(KEYS, Mode.STREAM))
    cache.admit(1, ids, NONE_STANDS)
    for expert in (0, 1, 2, 4):
        cache.row(1, expert)
    assert cache.current.wrong == {0, 2}
    assert str(cache.current.unreadable[EXPERTS + 4]) == f"row {EXPERTS + 4} is damaged"
    pack.damaged.clear()
    cache.begin(Pass.over(KEYS, Mode.STREAM))
    cache.admit(1, ids, NONE_STANDS)
    assert (cache.row(1, 4) == Pack.row(EXPERTS + 4)).all(), "mended, it is served again"
    assert not cache.current.wrong


def test_who_stands_on_a_correction_needs_no_slot(
    closing: Callable[[BaseCache], BaseCache],
) -> None:
    cache = closing(a_cache(Pack(), 3))
    cache.begin(Pass.over(KEYS, Mode.REPLAY))
    standing = NONE_STANDS.copy()
    standing[2] = True
    ids = np.array([[2, 3], [-1, 2]])
    assert cache.admit(0, ids, standing).tolist() == [[2, -1], [-1, 2]]
    assert list(cache.current.missing) == [3]
    assert cache.current.left_out == {0: 1}
    assert ids.tolist() == [[2, 3], [-1, 2]], "the caller's ids were changed"


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmLck:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


def test_an_arena_is_locked_or_says_why_it_is_not() -> None:
    before = locked_bytes()
    memory = host_memory(1000, 4096)
    if memory.kind == "locked":
        assert locked_bytes() - before >= 4_096_000
        assert not memory.why
    else:
        assert memory.kind == "pageable"
        assert memory.why
    memory.rows[:] = 7
    assert memory.rows.shape == (1000, 4096)


def test_where_the_lock_is_refused_the_memory_is_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hostmem, "_lock", lambda memory: "Cannot allocate memory")
    memory = host_memory(3, ROW)
    assert (memory.kind, memory.why) == ("pageable", "Cannot allocate memory")
    memory.rows[2] = 1
    assert memory.rows.sum() == ROW
