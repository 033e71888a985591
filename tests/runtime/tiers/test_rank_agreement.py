"""Ranks whose disks differ show the same slots in the same step, and decide the same moves."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsruntime.codec.layout import Correction
from dsruntime.pack.errors import CorruptError
from dsruntime.pack.reader import PackReader
from dsruntime.tiers.agreement import Alone, Fill, Together, settled
from dsruntime.tiers.policy import Frequency
from dsruntime.tiers.store import TierStore

LAYERS, EXPERTS = 4, 8


@pytest.mark.parametrize(
    ("fills", "agreed"),
    [
        ([Fill.DONE, Fill.DONE], Fill.DONE),
        ([Fill.DONE, Fill.PENDING], None),
        ([Fill.FAILED, Fill.PENDING], None),  # a slot that is being written is not given away
        ([Fill.FAILED, Fill.DONE], Fill.FAILED),
        ([Fill.FAILED, Fill.FAILED], Fill.FAILED),
    ],
)
def test_a_move_is_settled_when_no_rank_is_still_at_it(
    fills: list[Fill], agreed: Fill | None
) -> None:
    assert settled([5], [sum(fills)], len(fills)) == ({} if agreed is None else {5: agreed})


def test_alone_everything_that_is_not_pending_is_settled() -> None:
    fills = {1: Fill.DONE, 2: Fill.PENDING, 3: Fill.FAILED}
    assert Alone().agreed(fills) == {1: Fill.DONE, 3: Fill.FAILED}


class Lockstep:
    """Ranks in one thread: each hears after a step what all asked a step ago."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rounds: list[list[dict[int, Fill]]] = []
        self.leads: list[np.ndarray] = []
        self.members = [Member(self) for _ in range(count)]


class Member:
    def __init__(self, all_ranks: Lockstep) -> None:
        self.all, self.count, self.round = all_ranks, all_ranks.count, 0
        self.steps = 0

    def least(self, value: int) -> int:
        return value

    def leading(self, counts: np.ndarray) -> np.ndarray:
        if self is self.all.members[0]:
            self.all.leads.append(counts.copy())
        self.steps += 1
        return self.all.leads[self.steps - 2] if self.steps > 1 else np.zeros_like(counts)

    def agreed(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        answer = {}
        if self.round:
            asked = self.all.rounds[self.round - 1]
            assert len({tuple(one) for one in asked}) == 1, "ranks ask about different moves"
            sums = [sum(one[key] for one in asked) for key in asked[0]]
            answer = settled(list(asked[0]), sums, self.count)
        if self.round == len(self.all.rounds):
            self.all.rounds.append([])
        self.all.rounds[self.round].append({k: v for k, v in fills.items() if k not in answer})
        self.round += 1
        return answer

    agreed_now = agreed


class MoodyReader(PackReader):
    """Reads a correction when it is let, and some never."""

    def __init__(self, directory: Path, broken: set[tuple[int, int]]) -> None:
        super().__init__(directory)
        self.broken = broken
        self.permits = threading.Semaphore(0)

    def correction(self, layer: int, expert: int, out: np.ndarray | None = None) -> np.ndarray:
        self.permits.acquire()
        if (layer, expert) in self.broken:
            raise CorruptError("damaged", remedy="-")
        return super().correction(layer, expert, out)


@pytest.mark.parametrize("seed", range(4))
def test_pools_of_ranks_with_different_disks_never_differ(
    canary_packs: dict[Correction, Path], seed: int
) -> None:
    draw = random.Random(seed)
    ranks = Lockstep(2)
    policy = Frequency(half_life_steps=2, hysteresis=0, margin=0, stay_steps=0, per_step=3)
    readers = [
        MoodyReader(canary_packs[Correction.SPLIT], broken) for broken in ({(1, 2)}, {(0, 3)})
    ]
    stores: list[TierStore[Any]] = []
    for reader, member in zip(readers, ranks.members, strict=True):
        stores.append(TierStore(reader, policy, torch.float32, member))
        stores[-1].allocate(6)
    steps, deadline = 0, time.monotonic() + 60
    while steps < 60 or stores[0].counters.evictions <= 5:
        assert time.monotonic() < deadline, stores[0].counters
        steps += 1
        routing = [np.array([[draw.randrange(EXPERTS) for _ in range(2)]]) for _ in range(LAYERS)]
        for reader in readers:
            reader.permits.release(draw.randrange(1, 4))
        moves = []
        for store in stores:
            for layer, ids in enumerate(routing):
                # what rounds the other way on another card: now and then another expert
                odd = store is stores[1] and draw.random() < 0.1
                store.record(layer, (ids + 1) % EXPERTS if odd else ids)
            moves.append(store.step())
        assert moves[0] == moves[1]
        assert (stores[0].pool.table == stores[1].pool.table).all()
        time.sleep(0.001)  # the loaders are threads, and want a turn on a busy machine
    assert stores[0].counters.failures == stores[1].counters.failures
    for store, reader in zip(stores, readers, strict=True):
        reader.permits.release(1000)
        store.close()
        reader.close()


def ask(rank: int, address: str, answers: Any) -> None:
    """One of two processes that agree over gloo."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    ranks = Together([0, 1])
    mine = [{7: Fill.DONE, 9: Fill.DONE}, {9: Fill.DONE}]
    if rank:
        mine = [{7: Fill.DONE, 9: Fill.PENDING}, {9: Fill.FAILED}]
    found = [ranks.least(10 - rank), *(ranks.agreed(fills) for fills in mine), ranks.agreed({})]
    found.append(ranks.agreed_now({4: Fill.DONE}))
    for step in (10, 20, 30):
        found.append(ranks.leading(np.array([step + rank, 0], dtype=np.int64)).tolist())
    answers.put((rank, found))
    distributed.destroy_process_group()


def test_two_processes_hear_the_same_a_step_later(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    address = f"file://{tmp_path}/meet"
    processes = [context.Process(target=ask, args=(rank, address, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    heard: list[Any] = [9, {}, {7: Fill.DONE}, {9: Fill.FAILED}, {4: Fill.DONE}]
    heard += [[0, 0], [10, 0], [20, 0]]  # the first rank's, a step later
    assert found == {0: heard, 1: heard}
