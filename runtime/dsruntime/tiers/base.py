"""Where a layer's 2-bit base is: resident, in slots of a cache, or read in place from the pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dsruntime.tiers.arena import Arena
from dsruntime.tiers.base_settings import BaseSettings
from dsruntime.tiers.cache import BaseCache
from dsruntime.tiers.hostmem import host_memory
from dsruntime.tiers.mapped import PackMap
from dsruntime.tiers.passes import Flags, Ids, Mode, Pass, tokens_of

if TYPE_CHECKING:
    from dsruntime.pack.reader import PackReader

Bytes = npt.NDArray[np.uint8]


class LayerBase(Protocol):
    """The base of one layer's experts. A row is asked for only where its expert was admitted."""

    @property
    def experts(self) -> int:
        """How many."""

    def admit(self, ids: Ids, standing: Flags) -> Ids:
        """Before a layer's sum over ``ids`` [T, k]: those it may run, -1 in place of the others.

        Args:
            standing: [experts] whose correction needs no base.
        """

    def row(self, expert: int) -> Bytes:
        """[row_bytes] of the base, valid until the next is asked for."""


class ResidentBase:
    """[experts, row] bytes of one layer. Rows are read straight into place and never copied."""

    def __init__(self, rows: Bytes) -> None:
        self._rows = rows

    @classmethod
    def load(cls, reader: PackReader, layer: int) -> ResidentBase:
        """All experts of a layer from a pack.

        Raises:
            CorruptError: a row is damaged and the reader cannot make it again.
        """
        size = reader.layout("base").size_bytes
        rows = np.empty((reader.geometry.experts, size), np.uint8)
        for expert, row in enumerate(rows):
            reader.base(layer, expert, out=row)
        return cls(rows)

    @property
    def experts(self) -> int:
        return len(self._rows)

    @property
    def size_bytes(self) -> int:
        return self._rows.nbytes

    def admit(self, ids: Ids, standing: Flags) -> Ids:
        """All of them."""
        return ids

    def row(self, expert: int) -> Bytes:
        """A view."""
        row: Bytes = self._rows[expert]
        return row


class CachedLayer:
    """One layer over the rank's `BaseCache`."""

    def __init__(self, layer: int, cache: BaseCache) -> None:
        self._layer = layer
        self._cache = cache
        self.experts = cache.experts

    def admit(self, ids: Ids, standing: Flags) -> Ids:
        """Those in a slot; while a prompt streams, all."""
        return self._cache.admit(self._layer, ids, standing)

    def row(self, expert: int) -> Bytes:
        """From its slot, or on its way through scratch."""
        return self._cache.row(self._layer, expert)


class MappedLayer:
    """One layer over the rank's `PackMap`."""

    def __init__(self, layer: int, pack: PackMap, bases: Bases) -> None:
        self._first = layer * bases.experts
        self._pack = pack
        self._bases = bases
        self.experts = bases.experts

    def admit(self, ids: Ids, standing: Flags) -> Ids:
        """Those whose rows can be read; what cannot is noted with its tokens."""
        wanted = np.zeros(self.experts, bool)
        wanted[ids[ids >= 0]] = True
        keys = (self._first + np.flatnonzero(wanted & ~standing)).tolist()
        errors = self._pack.check(keys)
        if not errors:
            return ids
        for key, error in errors.items():
            self._bases.current.fail(key, tokens_of(ids, key - self._first), error)
        return np.where(np.isin(ids, [key - self._first for key in errors]), -1, ids)

    def row(self, expert: int) -> Bytes:
        """A view of the file."""
        return self._pack.row(self._first + expert)


class Bases:
    """The base of every layer of one rank, opened as the settings ask.

    The memory of a cache is taken here, with the weights of the model: what comes later (KV cache,
    warm-up, correction pool) sees what is left.
    """

    def __init__(self, reader: PackReader, experts: str, settings: BaseSettings) -> None:
        """``experts``: ``w2-resident`` or ``w2-cache``.

        Raises:
            ValueError: a mapped layer does not exist, or the cache is too small; names the key.
        """
        geometry = reader.geometry
        self.experts = geometry.experts
        self.keys = geometry.rows
        self.cache: BaseCache | None = None
        self.mapped = _rows_of(settings.mapped_layers, geometry.layers)
        self.current = Pass.over(self.keys, Mode.STREAM)
        self._reader = reader
        self._map = PackMap(reader) if self.mapped else None
        if experts == "w2-cache":
            self.cache = self._open_cache(settings)
        self.begin(Mode.STREAM)

    def layer(self, layer: int) -> LayerBase:
        """The base of a layer by its row in the pack; a resident one is read now.

        Raises:
            CorruptError: a row is damaged and the reader cannot make it again.
        """
        if layer in self.mapped:
            assert self._map is not None
            return MappedLayer(layer, self._map, self)
        if self.cache is not None:
            return CachedLayer(layer, self.cache)
        return ResidentBase.load(self._reader, layer)

    def begin(self, mode: Mode) -> None:
        """A new pass of the model."""
        self.current = Pass.over(self.keys, mode)
        if self.cache is not None:
            self.cache.begin(self.current)

    def describe(self) -> str:
        """In a few words, for the log."""
        parts = []
        if self.cache is not None:
            slots, arena = self.cache.slots.slots, self.cache.arena.memory
            cached = self.keys - len(self.mapped) * self.experts
            parts.append(
                f"in a cache of {slots} slots ({slots / max(cached, 1):.1%} of the experts), "
                + _arena_words(len(arena.rows), arena.kind, arena.why)
            )
        else:
            parts.append("resident")
        if self.mapped:
            parts.append(f"{len(self.mapped)} of them mapped from the pack")
        return ", ".join(parts)

    def close(self) -> None:
        """Stop fetching and release the files."""
        if self.cache is not None:
            self.cache.close()
        if self._map is not None:
            self._map.close()

    def _open_cache(self, settings: BaseSettings) -> BaseCache:
        reader, experts = self._reader, self.experts
        row_bytes = reader.layout("base").size_bytes
        rows = min(settings.arena_bytes // row_bytes, self.keys)

        def read(key: int, out: Bytes) -> None:
            reader.base(*divmod(key, experts), out=out)

        arena = Arena(host_memory(rows, row_bytes), read, settings.fetch_threads)
        layers = len(reader.geometry.layers)
        return BaseCache(layers, experts, row_bytes, settings.base_cache_bytes, arena)


def _rows_of(layers: frozenset[int], names: tuple[str, ...]) -> frozenset[int]:
    """Pack rows of layers by number.

    Raises:
        ValueError: there is no such layer.
    """
    rows = {name: row for row, name in enumerate(names)}
    absent = sorted(number for number in layers if f"layers.{number}" not in rows)
    if absent:
        raise ValueError(
            f"mapped_layers: there is no layer {absent[0]}; the pack has {names[0]} to {names[-1]}"
        )
    return frozenset(rows[f"layers.{number}"] for number in layers)


def _arena_words(rows: int, kind: str, why: str) -> str:
    if not rows:
        return "no arena"
    return f"an arena of {rows} rows ({kind}{': ' + why if kind == 'pageable' else ''})"
