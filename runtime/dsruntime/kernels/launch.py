"""Tiles, and how each kernel is launched. Shapes are runtime arguments: one binary serves all."""

from __future__ import annotations

from dataclasses import dataclass

from dsruntime.codec.layout import Correction, ExpertShape, RowLayout

FEW_PAIRS = 256
"""Up to so many (token, expert) pairs are grouped in one launch without a sort."""


class ShapeError(ValueError):
    """The kernels have no tile for these experts."""


@dataclass(frozen=True)
class Tile:
    """BM weight rows by BT tokens; BK words of sixteen weights at a time.

    `stages` is the depth of the copy pipeline; `warps` work on 16 rows each.
    """

    rows: int
    tokens: int
    words: int
    warps: int
    stages: int


DECODE = Tile(rows=64, tokens=8, words=16, warps=4, stages=3)
PREFILL = Tile(rows=64, tokens=32, words=16, warps=4, stages=3)


@dataclass(frozen=True)
class Tiles:
    """Blocks of eight tokens while few share an expert, of 32 in a prefill."""

    decode: Tile = DECODE
    prefill: Tile = PREFILL

    def of(self, pairs: int) -> Tile:
        """The tile for so many (token, expert) pairs."""
        return self.decode if pairs <= FEW_PAIRS else self.prefill


TILES = Tiles()


def most_blocks(pairs: int, experts: int, block_tokens: int) -> int:
    """Blocks that any routing of `pairs` can need: each expert's last one may be ragged."""
    if pairs <= FEW_PAIRS:
        return pairs
    return (pairs + min(pairs, experts) * (block_tokens - 1)) // block_tokens


@dataclass(frozen=True)
class Planes:
    """Where the planes of one expert lie: in its base row, and in its slot of the pool."""

    shape: ExpertShape
    coding: Correction

    def __post_init__(self) -> None:
        h, i, tile = self.shape.hidden, self.shape.intermediate, DECODE
        wanted = 16 * tile.words
        if h % wanted or i % wanted:
            raise ShapeError(
                f"kernels: experts of {h} x {i} on this rank; both must be multiples of {wanted}: "
                "use fewer tensor-parallel ranks"
            )

    @property
    def base(self) -> RowLayout:
        """The base row."""
        return self.shape.base

    @property
    def slot(self) -> RowLayout:
        """The correction."""
        return self.shape.correction(self.coding)

    @property
    def split(self) -> bool:
        """Whether a correction needs the base codes."""
        return self.coding is Correction.SPLIT

    def gate_up(self) -> dict[str, int]:
        """Launch arguments that describe the first product."""
        h = self.shape.hidden
        return {
            "INNER": self.shape.intermediate,
            "KW": h // 16,
            "KS": h // 32,
            "base_bytes": self.base.size_bytes,
            "scales_at": _offset(self.base, "scales13"),
            "slot_bytes": self.slot.size_bytes,
            "high_at": _offset(self.slot, "high13"),
        }

    def down(self) -> dict[str, int]:
        """Launch arguments that describe the second."""
        i = self.shape.intermediate
        return {
            "HIDDEN": self.shape.hidden,
            "KW": i // 16,
            "KS": i // 32,
            "base_bytes": self.base.size_bytes,
            "codes_at": _offset(self.base, "codes2"),
            "scales_at": _offset(self.base, "scales2"),
            "slot_bytes": self.slot.size_bytes,
            "correction_at": _offset(self.slot, "low2" if self.split else "fp4_2"),
            "high_at": _offset(self.slot, "high2"),
        }


def _offset(layout: RowLayout, name: str) -> int:
    """A plane's place; 0 for one that this coding does not have (nobody reads it then)."""
    return next((plane.offset for plane in layout.planes if plane.name == name), 0)
