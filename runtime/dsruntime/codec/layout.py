"""How one expert lies in a row of bytes: planes, their order, their place.

One row per (layer, expert), for one tensor-parallel rank. N-major planes, K contiguous:

    base        codes13 [2I, H/4] | scales13 [2I, H/32] | codes2 [H, I/4] | scales2 [H, I/32]
    plain       fp4_13  [2I, H/2] | fp4_2   [H, I/2]
    split       low13   [2I, H/4] | high13  [2I, H/16]  | low2   [H, I/4] | high2   [H, I/16]

with H the hidden size and I the rank's share of the intermediate size; the "13" planes hold w1
(gate) above w3 (up). Ranks share w1 and w3 by rows and w2 by columns. A weight k sits in base byte
k//4 at bits 2(k%4); in plain byte k//2; its pair k//2 in low byte k//4 (nibble (k//2)%2) and in
high byte k//16 at bit (k//2)%8: one byte of base and one byte of low plane cover the same four
weights, which is what a kernel wants to load together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ROW_ALIGNMENT = 4096
"""Rows start at multiples of this: a page, and what O_DIRECT wants."""


class Correction(StrEnum):
    """How the correction is coded."""

    PLAIN = "plain"
    SPLIT = "split"
    NONE = "none"


class Matrix(StrEnum):
    """The three matrices of an expert: gate, up, down."""

    W1 = "w1"
    W3 = "w3"
    W2 = "w2"


@dataclass(frozen=True)
class Plane:
    """One plane of a row: `rows` x `row_bytes` bytes at `offset`."""

    name: str
    offset: int
    rows: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Segment:
    """The part of a plane that comes from one matrix; rows are checked segment by segment."""

    matrix: Matrix
    kind: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class RowLayout:
    """The planes of a row and the segments they are made of, both in order of offset."""

    planes: tuple[Plane, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the row without padding: the size of a slot on the device."""
        return sum(plane.size_bytes for plane in self.planes)

    @property
    def stride_bytes(self) -> int:
        """Distance between rows in a file."""
        return -(-self.size_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        found = []
        for plane in self.planes:
            kind = plane.name.rstrip("123_")
            if plane.name.endswith("13"):
                half = plane.size_bytes // 2
                found.append(Segment(Matrix.W1, kind, plane.offset, half))
                found.append(Segment(Matrix.W3, kind, plane.offset + half, half))
            else:
                found.append(Segment(Matrix.W2, kind, plane.offset, plane.size_bytes))
        return tuple(found)

    def views(self, row: Bytes) -> dict[str, Bytes]:
        """The planes of a row by name, as [rows, row_bytes] views of it (no copy)."""
        return {
            p.name: row[p.offset : p.offset + p.size_bytes].reshape(p.rows, p.row_bytes)
            for p in self.planes
        }


@dataclass(frozen=True)
class ExpertShape:
    """Hidden size H and the rank's share I of the intermediate size, in weights."""

    hidden: int
    intermediate: int

    @cached_property
    def base(self) -> RowLayout:
        """Base row: 2-bit codes and scales."""
        return self._layout(("codes", 4), ("scales", 32))

    def correction(self, coding: Correction, *, own_scales: bool = False) -> RowLayout:
        """Correction row, or the device slot over a base cache (`own_scales`: scales follow).

        The file never repeats the scales, which the base row has; a slot that must stand without
        its base takes them along.
        """
        kinds = {
            Correction.PLAIN: (("fp4_", 2),),
            Correction.SPLIT: (("low", 4), ("high", 16)),
            Correction.NONE: (),
        }[coding]
        return self._layout(*kinds, *((("scales", 32),) if own_scales else ()))

    def _layout(self, *kinds: tuple[str, int]) -> RowLayout:
        h, i = self.hidden, self.intermediate
        planes: list[Plane] = []
        offset = 0
        for suffix, rows, k in (("13", 2 * i, h), ("2", h, i)):
            for kind, per_byte in kinds:
                planes.append(Plane(kind + suffix, offset, rows, k // per_byte))
                offset += planes[-1].size_bytes
        return RowLayout(tuple(planes))
