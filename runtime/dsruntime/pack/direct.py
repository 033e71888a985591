"""Rows made from the checkpoint when they are asked for: serving without a pack.

The same bytes as a pack of this checkpoint would give, by the same code; only that each start pays
for making them again, and each promotion reads and converts a whole expert. One matrix at a time
is in memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dsruntime.codec.layout import Correction, RowLayout
from dsruntime.pack.checkpoint import open_checkpoint
from dsruntime.pack.plan import Geometry, Kind, plan_build
from dsruntime.pack.reader import make_row

Bytes = npt.NDArray[np.uint8]


class CheckpointRows:
    """`PackReader`'s rows without a pack. Thread-safe: nothing is kept but the headers.

    Raises:
        PackError: the checkpoint is absent or damaged, or its experts cannot be packed or shared.
    """

    def __init__(
        self, checkpoint: Path, rank: int, ranks: int, correction: Correction = Correction.SPLIT
    ) -> None:
        self.directory = checkpoint
        self.rank = rank
        self._checkpoint = open_checkpoint(checkpoint)
        plan = plan_build(self._checkpoint, tensor_parallel=ranks, correction=correction)
        self.geometry: Geometry = plan.geometry
        self._bare = replace(plan.geometry, correction=Correction.NONE)
        self.identity = plan.key
        """Of configuration and headers: the contents have not all been read."""

    def close(self) -> None:
        """Nothing is open."""

    def layer_index(self, name: str) -> int:
        """Row block of a layer by its name in the checkpoint."""
        return self.geometry.layers.index(name)

    def layout(self, kind: Kind) -> RowLayout:
        """Where the planes of a row are."""
        return self.geometry.layout(kind)

    def base(self, layer: int, expert: int, out: Bytes | None = None) -> Bytes:
        """As `PackReader.base`.

        Raises:
            CheckpointError: the tensors cannot be read or hold what cannot be packed.
        """
        return self._row("base", self._bare, layer, expert, out)  # no corrections are made for it

    def correction(self, layer: int, expert: int, out: Bytes | None = None) -> Bytes:
        """As `PackReader.correction`."""
        return self._row("correction", self.geometry, layer, expert, out)

    def _row(
        self, kind: Kind, geometry: Geometry, layer: int, expert: int, out: Bytes | None
    ) -> Bytes:
        number = layer * geometry.experts + expert
        row = make_row(self._checkpoint, geometry, kind, self.rank, number)
        if out is None:
            return row
        out[:] = row
        return out
