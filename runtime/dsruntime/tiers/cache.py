"""The base cache: slots on the device for the base rows in use, the rest in arena and pack.

A layer reads rows from slots only, through a table [layers, experts] that never moves. Who is not
in the table is either left out and noted, for the step to be repeated (`Mode.REPLAY`), or streamed
through scratch within the layer (`Mode.STREAM`). A stream fills slots that are empty and displaces
nobody; only the misses of decode steps displace, the coldest first, and never one that the step
itself needs. Heat counts decode steps only, so a prompt makes nobody hot.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsruntime.tiers.arena import Arena, Wanted
from dsruntime.tiers.passes import Flags, Ids, Mode, Pass, tokens_of
from dsruntime.tiers.pool import NO_SLOT, CorrectionPool
from dsruntime.tiers.stream import Stream

Bytes = npt.NDArray[np.uint8]

HALF_LIFE_STEPS = 256.0
SCRATCH_SHARE = 8
MOST_SCRATCH = 32
LEAST_ROWS = 4
"""Two for scratch, which is read and used in halves, and two for slots."""


@dataclass(frozen=True)
class Sizes:
    """How a budget is divided: slots that the table names, and scratch rows for streams."""

    slots: int
    scratch: int


def divide(budget_bytes: int, row_bytes: int, keys: int) -> Sizes:
    """Rows of a budget: an eighth for scratch, up to 32 rows, and the rest for slots. Pure.

    Raises:
        ValueError: the budget holds fewer than four rows.
    """
    rows = budget_bytes // row_bytes
    if rows < LEAST_ROWS:
        raise ValueError(
            f"base_cache_gib: {budget_bytes / 2**30:g} GiB hold {rows} experts of "
            f"{row_bytes / 2**20:.3g} MiB; at least {LEAST_ROWS} are needed"
        )
    scratch = max(2, min(MOST_SCRATCH, rows // SCRATCH_SHARE) & ~1)
    return Sizes(min(rows - scratch, keys), scratch)


@dataclass(frozen=True)
class Fetched:
    """What a batch brought: how many rows; for how many there was no slot; and what failed."""

    rows: int
    homeless: int
    errors: dict[int, Exception]


class BaseCache:
    """Slots, scratch and arena of one rank. Belongs to the thread that runs the model."""

    def __init__(
        self, layers: int, experts: int, row_bytes: int, budget_bytes: int, arena: Arena
    ) -> None:
        """Takes all of the budget at once.

        Raises:
            ValueError: the budget holds too few rows.
        """
        sizes = divide(budget_bytes, row_bytes, layers * experts)
        self.experts = experts
        self.arena = arena
        self.slots = CorrectionPool(layers, experts, row_bytes)
        self.slots.allocate(sizes.slots)
        self.slots.memory.fill(0)  # taken now, so that whoever measures memory next sees it
        self.current = Pass.over(layers * experts, Mode.STREAM)
        self.streamed_rows = 0
        self.fetched_rows = 0
        self._scratch: Bytes = np.zeros((sizes.scratch, row_bytes), np.uint8)
        self._heat = np.zeros(layers * experts)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="dsruntime-stream")
        self._stream: Stream | None = None
        self._ids: Ids = np.empty((0, 1), np.int64)

    @property
    def size_bytes(self) -> int:
        """Of device memory."""
        return self.slots.memory.nbytes + self._scratch.nbytes

    def begin(self, passing: Pass) -> None:
        """A new pass over the model's layers, which fills ``passing``."""
        self._end_stream()
        self.current = passing

    def admit(self, layer: int, ids: Ids, standing: Flags) -> Ids:
        """Before a layer's sum: the ids [T, k] that it may run, others of them -1.

        Args:
            standing: [experts] whose correction needs no base.
        """
        wanted = np.zeros(self.experts, bool)
        wanted[ids[ids >= 0]] = True
        wanted &= ~standing
        first = layer * self.experts
        self.current.needed[first : first + self.experts] |= wanted
        missing = np.flatnonzero(wanted & (self.slots.table[layer] == NO_SLOT))
        if not len(missing):
            return ids
        if self.current.mode is Mode.STREAM:
            self._begin_stream(layer, ids, [first + int(expert) for expert in missing])
            return ids
        for expert in missing.tolist():
            self.current.missing[first + expert] = tokens_of(ids, expert)
        return np.where(np.isin(ids, missing), -1, ids)

    def row(self, layer: int, expert: int) -> Bytes:
        """The base row of an admitted expert, until another is asked for."""
        slot = self.slots.slot(layer, expert)
        if slot is not None:
            return slot
        assert self._stream is not None, "not admitted"
        key = layer * self.experts + expert
        row, error = self._stream.row(key)
        if error is not None and key not in self.current.unreadable:
            self.current.fail(key, tokens_of(self._ids, expert), error)
        return row

    def fetch(self, keys: Sequence[int]) -> Fetched:
        """Bring rows into slots, in this order as far as slots go; one batch.

        The victims are the coldest of those that the current pass did not need.
        """
        view = self.slots.view()
        movable = np.flatnonzero(self.slots.visible() & ~self.current.needed)
        short = max(0, len(keys) - view.free)
        victims = movable[np.argsort(self._heat[movable], kind="stable")[:short]].tolist()
        evict = [None] * min(view.free, len(keys)) + victims
        placed = list(zip(keys, evict, strict=False))
        errors = self._fill([(key, self.slots.reserve(key, victim)) for key, victim in placed])
        return Fetched(len(placed) - len(errors), len(keys) - len(placed), errors)

    def step_done(self) -> None:
        """A decode step is over: whom its last pass needed is hotter for it."""
        self._heat *= 0.5 ** (1.0 / HALF_LIFE_STEPS)
        self._heat[self.current.needed] += 1.0

    def close(self) -> None:
        """Stop the threads."""
        self._end_stream()
        self._ahead.shutdown(cancel_futures=True)
        self.arena.close()

    def _begin_stream(self, layer: int, ids: Ids, missing: list[int]) -> None:
        """Some into slots that are empty, the others through scratch; no slot changes hands."""
        self._end_stream()
        self._ids = ids
        free = self.slots.view().free
        errors = self._fill([(key, self.slots.reserve(key)) for key in missing[:free]], scan=True)
        # those that failed are tried again in the stream, which is where it is told
        left = [key for key in missing if key in errors] + missing[free:]
        self.streamed_rows += len(left)
        self._stream = Stream(
            sorted(left),
            self._scratch,
            lambda batch: self.arena.fetch(batch, scan=True),
            self._ahead,
        )

    def _fill(self, slots: list[tuple[int, Bytes]], *, scan: bool = False) -> dict[int, Exception]:
        errors = self.arena.fetch([Wanted(key, slot) for key, slot in slots], scan=scan)
        for key, _ in slots:
            if key in errors:
                self.slots.abandon(key)
            else:
                self.slots.publish(key)
        self.fetched_rows += len(slots) - len(errors)
        return errors

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
