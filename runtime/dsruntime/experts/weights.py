"""Where the matrices of a layer's experts come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import psutil
import torch
from torch.nn.functional import linear

from dsruntime.experts import fp4


class ExpertWeights(Protocol):
    """Hands out the matrices of local experts, ready for a product."""

    @property
    def count(self) -> int:
        """Local experts."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the matrices, and so of the products."""

    def gate_up(self, expert: int) -> torch.Tensor:
        """[2 I, H]: gate rows, then up rows."""

    def down(self, expert: int) -> torch.Tensor:
        """[H, I]."""

    def through_gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[T, H] -> [T, 2 I], both in `dtype`."""

    def through_down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[T, I] -> [T, H], both in `dtype`."""


class ByMatrix:
    """Products with the matrices themselves, for weights that know no shorter way."""

    def through_gate_up(self: ExpertWeights, x: torch.Tensor, expert: int) -> torch.Tensor:
        return linear(x, self.gate_up(expert))

    def through_down(self: ExpertWeights, x: torch.Tensor, expert: int) -> torch.Tensor:
        return linear(x, self.down(expert))


@dataclass(frozen=True)
class Fp4Weights(ByMatrix):
    """Checkpoint codes; every request decodes. Nothing is kept.

    ``w13`` [E, 2 I, H / 2], ``w13_scale`` [E, 2 I, H / 32], ``w2`` [E, H, I / 2], ``w2_scale``
    [E, H, I / 32], all uint8.
    """

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return self.w13.shape[0]

    def gate_up(self, expert: int) -> torch.Tensor:
        return fp4.decode(self.w13[expert], self.w13_scale[expert], self.dtype)

    def down(self, expert: int) -> torch.Tensor:
        return fp4.decode(self.w2[expert], self.w2_scale[expert], self.dtype)


class Budget:
    """Bytes that may be kept, shared by all layers of a process."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.left_bytes = total_bytes

    def take(self, size_bytes: int) -> bool:
        """Reserve ``size_bytes`` if they are left."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


def default_budget(ranks: int) -> Budget:
    """A quarter of the memory that is free now, divided among the ranks of this host.

    Decoded fp32 weights are 7.5 times their FP4 codes: a small model is kept whole, a large one
    decodes what does not fit each time it is asked.
    """
    return Budget(psutil.virtual_memory().available // 4 // max(ranks, 1))


@dataclass(frozen=True)
class Kept(ByMatrix):
    """Decoded matrices, kept from first use while the budget lasts.

    Which experts are kept is decided by who comes first and never revised: evicting would decode
    more than it saves when a step cycles through more experts than fit.
    """

    source: ExpertWeights
    budget: Budget
    _matrices: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.source.count

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    def gate_up(self, expert: int) -> torch.Tensor:
        return self._kept(expert, "gate_up")

    def down(self, expert: int) -> torch.Tensor:
        return self._kept(expert, "down")

    def _kept(self, expert: int, which: str) -> torch.Tensor:
        matrix = self._matrices.get((expert, which))
        if matrix is None:
            matrix = getattr(self.source, which)(expert)
            if self.budget.take(matrix.numel() * matrix.element_size()):
                self._matrices[expert, which] = matrix
        return matrix
