"""One rank's tiers together: base, pool, policy, and the thread that fills slots."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.codec.layout import Correction
from dsruntime.tiers.agreement import Alone, Fill, Ranks
from dsruntime.tiers.base import Bases
from dsruntime.tiers.base_settings import BaseSettings
from dsruntime.tiers.metrics import PoolSnapshot
from dsruntime.tiers.policy import Heats, Move, Policy, S, hottest, room_for, step_counts
from dsruntime.tiers.pool import CorrectionPool
from dsruntime.tiers.weights import Scratch, TieredWeights

if TYPE_CHECKING:
    from dsruntime.pack.reader import PackReader

logger = logging.getLogger("dsruntime.tiers")


@dataclass
class Counters:
    """What happened since the start, for metrics.

    ``uses`` are (token, expert) pairs, ``hits`` those whose expert was corrected at that step.
    """

    uses: int = 0
    hits: int = 0
    promotions: int = 0
    evictions: int = 0
    failures: int = 0
    moved_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of corrected uses; 0 before the first."""
        return self.hits / self.uses if self.uses else 0.0


class TierStore(Generic[S]):
    """Owns what the layers' `TieredWeights` read.

    All methods belong to the thread that runs the model, between its steps (`record` also within
    one). Only the copying from the pack happens elsewhere, into slots that nobody can see yet, so
    a step never waits for it, and sees one state of the pool from its first layer to its last.

    With several ranks each decides the same moves from the same routing, and slots become visible
    on all of them in the same step (`agreement`).
    """

    def __init__(
        self,
        reader: PackReader,
        policy: Policy[S],
        dtype: torch.dtype,
        ranks: Ranks | None = None,
        bases: Bases | None = None,
        ensure_from: int | None = None,
        new_pool: Callable[[int, int, int], CorrectionPool] = CorrectionPool,
    ) -> None:
        """`ensure_from`: tokens in a step from which on `ensure` corrects before it is computed.

        `new_pool`: of (layers, experts, slot_bytes); where its slots are is its affair.
        """
        geometry = reader.geometry
        self.bases = bases or Bases(reader, "w2-resident", BaseSettings())
        self._reader = reader
        self._policy = policy
        self._ranks = ranks or Alone()
        self._ensure_from = sys.maxsize if ensure_from is None else ensure_from
        self._experts = geometry.experts
        self._coding = geometry.correction
        # a plain correction needs nothing of its base but the scales, so over a cache it takes
        # them along; a split one is half of a code and always needs the other half
        self._stands = self.bases.cache is not None and self._coding is Correction.PLAIN
        self._slot_layout = geometry.shape.correction(self._coding, own_scales=self._stands)
        self._scratch = Scratch(dtype)
        keys = geometry.rows
        self._state = policy.start(keys)
        self._counts = np.zeros(keys, np.int64)
        self._loads: dict[int, Future[None]] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="dsruntime-promote")
        self.pool = new_pool(len(geometry.layers), self._experts, self._slot_layout.size_bytes)
        self.counters = Counters()

    @property
    def state(self) -> S:
        """The policy's memory."""
        return self._state

    def layer(self, layer: int) -> TieredWeights:
        """Load a layer's base; its weights."""
        return TieredWeights(
            layer,
            self.bases.layer(layer),
            self._reader.layout("base"),
            self.pool,
            self._coding,
            self._slot_layout,
            self._scratch,
        )

    def allocate(self, slots: int) -> None:
        """Give the pool its slots: last of all, when the rest of the engine has its memory.

        Raises:
            StaleError: slots are wanted and the pack has no corrections.
        """
        if slots and self._coding is Correction.NONE:
            self._reader.manifest.file("correction", self._reader.rank)
        self.pool.allocate(min(slots, self.pool.table.size))

    def forget(self) -> None:
        """All uses so far: profiling and warm-up route nonsense."""
        self._counts[:] = 0
        self._state = self._policy.start(len(self._counts))
        self.counters = Counters()

    def warm(self, heat: Heats) -> int:
        """Begin with this heat: the hottest are corrected before this returns; how many are."""
        self._state = self._policy.start(len(heat), heat)
        return self.preload(hottest(heat, heat > 0, self.pool.slots))

    @property
    def heat(self) -> Heats:
        """[keys] how much each expert is wanted in the pool."""
        return self._policy.heat(self._state)

    def snapshot(self) -> PoolSnapshot:
        """The counters and the pool, as of now."""
        pool = self.pool
        return PoolSnapshot(
            **vars(self.counters),
            slots=pool.slots,
            corrected=int(np.count_nonzero(pool.visible())),
            loading=len(self._loads),
            experts=pool.table.size,
        )

    def preload(self, keys: Iterable[int]) -> int:
        """Correct these experts, hottest first, until the slots are used up; how many are."""
        for key in keys:
            if self.pool.view().free == 0:
                break
            self._begin(Move(key))
        self.settle()
        return int(self.pool.visible().sum())

    def record(self, layer: int, ids: npt.NDArray[np.integer]) -> None:
        """A layer's routing [T, k] in this step; ids below zero are padding."""
        counts = step_counts(ids, self._experts)
        self._counts[layer * self._experts : (layer + 1) * self._experts] += counts

    def ensure(self, layer: int, ids: npt.NDArray[np.integer]) -> None:
        """Before a layer runs for a prompt's tokens: correct its experts, the most used first.

        Waits, unlike all else here. As many as there is room for: the hotter half of the pool,
        which decoding lives on, is not touched for a prompt.
        """
        if len(ids) < self._ensure_from or not self.pool.slots:
            return
        counts = step_counts(ids, self._experts)
        by_use = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        keys = (layer * self._experts + by_use).tolist()
        moves = room_for(keys, self.heat, self.pool.view(), protect=0.5)
        for move in moves:
            self._begin(move)
        if moves:
            self.settle()

    def begin_pass(self) -> None:
        """The step is run again: what was recorded of it so far is void."""
        self._counts[:] = 0

    @property
    def used(self) -> npt.NDArray[np.bool_]:
        """[keys] that the step has used so far."""
        used: npt.NDArray[np.bool_] = self._counts > 0
        return used

    def correct_used(self, most: int | None = None) -> int:
        """Correct at once whom the step has used, the most used first; how many came in.

        Waits for them: for a step that is about to be run again.
        """
        by_use = np.argsort(-self._counts, kind="stable")[: np.count_nonzero(self._counts)]
        moves = room_for(by_use.tolist(), self.heat, self.pool.view())[:most]
        before = self.counters.promotions
        for move in moves:
            self._begin(move)
        if moves:
            self.settle()
        return self.counters.promotions - before

    def name(self, key: int) -> str:
        """An expert for people."""
        layer, expert = divmod(key, self._experts)
        return f"{self._reader.geometry.layers[layer]} expert {expert}"

    def step(self) -> tuple[Move, ...]:
        """After a step: show what has been filled, decide and begin the next moves. Never waits."""
        counts = self._ranks.leading(self._counts)
        self.counters.uses += int(counts.sum())
        self.counters.hits += int(counts[self.pool.visible()].sum())
        self._show(self._ranks.agreed(self._fills()))
        self._state, moves = self._policy.decide(self._state, counts, self.pool.view())
        self._counts[:] = 0
        for move in moves:
            self._begin(move)
        return moves

    def settle(self) -> None:
        """Wait until every begun move is visible or has failed."""
        for load in self._loads.values():
            load.exception()
        self._show(self._ranks.agreed_now(self._fills()))

    def close(self) -> None:
        """Stop the loader thread; what was begun is finished, not shown."""
        self._loader.shutdown(cancel_futures=True)

    def _begin(self, move: Move) -> None:
        slot = self.pool.reserve(move.promote, move.evict)
        self.counters.evictions += move.evict is not None
        layer, expert = divmod(move.promote, self._experts)

        def fill() -> None:
            fetch = self._reader.standing_slot if self._stands else self._reader.correction
            fetch(layer, expert, out=slot)
            self.pool.deliver(move.promote)

        self._loads[move.promote] = self._loader.submit(fill)

    def _fills(self) -> dict[int, Fill]:
        """How far each begun move is on this rank."""
        return {
            key: Fill.PENDING if not load.done() else Fill.FAILED if load.exception() else Fill.DONE
            for key, load in self._loads.items()
        }

    def _show(self, fills: dict[int, Fill]) -> None:
        from dsruntime.pack.errors import PackError

        for key, fill in fills.items():
            error = self._loads.pop(key).exception()
            if error is not None and not isinstance(error, PackError | OSError):
                raise error
            if fill is Fill.DONE:
                self.pool.publish(key)
                self.counters.promotions += 1
                self.counters.moved_bytes += self.pool.slot_bytes
                continue
            self.pool.abandon(key, bar=True)
            self.counters.failures += 1
            layer, expert = divmod(key, self._experts)
            logger.warning(
                "%s expert %d stays at 2 bits until the next start: %s",
                self._reader.geometry.layers[layer],
                expert,
                error or "another rank could not read its share",
            )
