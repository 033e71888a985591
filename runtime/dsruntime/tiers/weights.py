"""An expert's matrices from the tier it is in: FP4 with a slot in the pool, 2-bit without."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import linear

from dsruntime.codec.layout import Correction, RowLayout
from dsruntime.tiers.base import LayerBase
from dsruntime.tiers.decode import base_into, fp4_into
from dsruntime.tiers.pool import NO_SLOT, CorrectionPool

Bytes = npt.NDArray[np.uint8]


class Scratch:
    """One buffer for each shape of matrix, shared by all layers of a process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._buffers: dict[str, torch.Tensor] = {}

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns], uninitialised; the one handed out for ``name`` before, if it fits."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != (rows, columns):
            buffer = self._buffers[name] = torch.empty(rows, columns, dtype=self.dtype)
        return buffer


class TieredWeights:
    """`experts.weights.ExpertWeights` of one layer over base and pool. Nothing decoded is kept.

    A matrix is valid until the next one of its kind is asked for, of any layer with the same
    scratch: so it must not be wrapped in `Kept`, which would also keep an expert from ever seeing
    its promotion.
    """

    def __init__(
        self,
        layer: int,
        base: LayerBase,
        base_layout: RowLayout,
        pool: CorrectionPool,
        coding: Correction,
        slot_layout: RowLayout,
        scratch: Scratch,
    ) -> None:
        """``slot_layout`` with scales of its own: a slot that stands without its base."""
        self._layer = layer
        self._base = base
        self._base_layout = base_layout
        self._pool = pool
        self._coding = coding
        self._slot_layout = slot_layout
        self._scratch = scratch
        self._stands = any(plane.name == "scales13" for plane in slot_layout.planes)
        self._shapes = {
            plane.name.removeprefix("codes"): (plane.rows, plane.row_bytes * 4)
            for plane in base_layout.planes
            if plane.name.startswith("codes")
        }
        # not at the top: it imports numba, over which vLLM's kernel registry trips at start
        from dsruntime.tiers.product import prepare

        prepare()

    @property
    def count(self) -> int:
        return self._base.experts

    @property
    def dtype(self) -> torch.dtype:
        return self._scratch.dtype

    def admit(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Before a sum over ``ids`` [T, k]: those it may run, -1 in place of the others."""
        corrected = self._pool.table[self._layer] != NO_SLOT
        return self._base.admit(ids, corrected & self._stands)

    def gate_up(self, expert: int) -> torch.Tensor:
        """[2 I, H]: gate rows, then up rows."""
        return self._matrix(expert, "13")

    def down(self, expert: int) -> torch.Tensor:
        """[H, I]."""
        return self._matrix(expert, "2")

    def through_gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[T, H] -> [T, 2 I]."""
        return self._through(x, expert, "13")

    def through_down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[T, I] -> [T, H]."""
        return self._through(x, expert, "2")

    def _through(self, x: torch.Tensor, expert: int, part: str) -> torch.Tensor:
        # not at the top, as above
        from dsruntime.tiers.product import base_product, can_multiply, fp4_product

        if not can_multiply(*x.shape):
            return linear(x, self._matrix(expert, part))
        kind, codes, scales = self._codes(expert, part)
        return (base_product if kind == "base" else fp4_product)(x, codes, scales)

    def _matrix(self, expert: int, part: str) -> torch.Tensor:
        out = self._scratch.matrix(part, *self._shapes[part])
        kind, codes, scales = self._codes(expert, part)
        return (base_into if kind == "base" else fp4_into)(codes, scales, out)

    def _codes(self, expert: int, part: str) -> tuple[Literal["base", "fp4"], Bytes, Bytes]:
        """Codes and scales of one matrix in the best tier that the expert is in."""
        slot = self._pool.slot(self._layer, expert)
        correction = {} if slot is None else self._slot_layout.views(slot)
        if self._stands and slot is not None:
            return "fp4", correction[f"fp4_{part}"], correction[f"scales{part}"]
        planes = self._base_layout.views(self._base.row(expert))
        codes, scales = planes[f"codes{part}"], planes[f"scales{part}"]
        if slot is None:
            return "base", codes, scales
        if self._coding is Correction.PLAIN:
            return "fp4", correction[f"fp4_{part}"], scales
        # not at the top, as above
        from dsruntime.codec.loops import LOOPS

        joined = LOOPS.join(codes, correction[f"low{part}"], correction[f"high{part}"])
        return "fp4", joined.reshape(len(codes), -1), scales
