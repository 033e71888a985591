"""What the ranks of one model agree on, so that their pools never drift apart.

Each rank holds a share of every expert, and its own copies of the pool's table and the policy's
memory. All decide the same moves as long as they see the same uses and the same pool.

Uses are those that the first rank counted. Routing should be the same on all, but two cards may
round a tie differently (kernels are chosen by each rank's own timing), the model does not mind, and
policies that drift apart would never heal.

When a slot has been filled, or failed to be, depends on each rank's disk. If each showed its
slot at once, the pools would differ for a step or two, which by itself is harmless: the share of an
expert that a rank computes is right in either tier (the rows of w1 and w3 and the columns of w2
belong together), so the sum lies between the 2-bit and the FP4 answer. But a policy that sees
different pools decides different moves, and that does not heal. So a slot becomes visible on all
ranks in the same step, and a move that failed on one is given up on all.

No step waits for a slow disk: after a step every rank sends what it has finished, and the sum is
read after the *next* step, by when it has long arrived, since that step's own reductions needed all
ranks to have got there. A slot therefore becomes visible one step later than it would alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Counts = npt.NDArray[np.int64]
_FAILED = 1 << 20
"""What a failed move adds to the sum; more ranks than that there are not."""


class Fill(IntEnum):
    """How far a move is."""

    PENDING = 0
    DONE = 1
    FAILED = _FAILED


class Ranks(Protocol):
    """The ranks that share each expert."""

    @property
    def count(self) -> int:
        """How many."""

    def least(self, value: int) -> int:
        """The least of all ranks' values. Waits for all."""

    def leading(self, counts: Counts) -> Counts:
        """[keys] the first rank's uses, of a step ago where there are several. Once a step by all.

        ``counts``: this rank's of this step; not kept.
        """

    def agreed(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        """Which moves, by key, all have finished or one has failed. Called once a step by all.

        The same on every rank, in the order given; what is pending somewhere is left out.
        """

    def agreed_now(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        """The same without delay: waits for all ranks' answers to these very moves."""


class Alone:
    """One rank: its own word is enough."""

    count = 1

    def least(self, value: int) -> int:
        """Itself."""
        return value

    def leading(self, counts: Counts) -> Counts:
        """A copy."""
        return counts.copy()

    def agreed(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        """What is not pending."""
        return {key: fill for key, fill in fills.items() if fill is not Fill.PENDING}

    agreed_now = agreed


class Together:
    """Several ranks, over a process group of their own.

    Of their own, so that nothing here waits behind a collective of the model, or before one.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        """`ranks`: numbers in the world; each of them must call this at the same point."""
        import torch.distributed as distributed

        self._distributed = distributed
        self._group = distributed.new_group(
            list(ranks), backend="gloo", use_local_synchronization=True
        )
        self.count = len(ranks)
        self._leader = ranks[0]
        self._led: tuple[torch.Tensor, Any] | None = None
        self._asked: tuple[list[int], torch.Tensor, Any] | None = None

    def least(self, value: int) -> int:
        """Waits for all."""
        found = torch.tensor([value], dtype=torch.int64)
        self._distributed.all_reduce(found, self._distributed.ReduceOp.MIN, self._group)
        return int(found)

    def leading(self, counts: Counts) -> Counts:
        """Those that were sent a step ago; sends these."""
        sent = torch.from_numpy(counts.copy())
        before = self._led
        work = self._distributed.broadcast(sent, self._leader, self._group, async_op=True)
        self._led = sent, work
        if before is None:
            return np.zeros_like(counts)
        before[1].wait()
        found: Counts = before[0].numpy()
        return found

    def agreed(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        """The answer to what was asked a step ago; asks about these."""
        answer = self._answer()
        keys = [key for key in fills if key not in answer]
        if keys:
            sums = torch.tensor([fills[key] for key in keys], dtype=torch.int64)
            work = self._distributed.all_reduce(sums, group=self._group, async_op=True)
            self._asked = keys, sums, work
        return answer

    def agreed_now(self, fills: dict[int, Fill]) -> dict[int, Fill]:
        """Asks again about all, and waits."""
        self._answer()  # superseded: these are answered anew
        sums = torch.tensor(list(fills.values()), dtype=torch.int64)
        self._distributed.all_reduce(sums, group=self._group)
        return settled(list(fills), sums.tolist(), self.count)

    def _answer(self) -> dict[int, Fill]:
        if self._asked is None:
            return {}
        (keys, sums, work), self._asked = self._asked, None
        work.wait()
        return settled(keys, sums.tolist(), self.count)


def settled(keys: Sequence[int], sums: Sequence[int], ranks: int) -> dict[int, Fill]:
    """What the sums of all ranks' `Fill` values say of each move. Pure.

    A failed move is only given up when nobody is still writing into its slot.
    """
    found = {}
    for key, total in zip(keys, sums, strict=True):
        failed, done = divmod(total, _FAILED)
        if failed + done == ranks:
            found[key] = Fill.FAILED if failed else Fill.DONE
    return found
