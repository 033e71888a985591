"""The correction pool: slots, and the table that says which expert's correction is in which.

Three states: *free*, *loading* (owned by an expert, being written, invisible) and *visible* (named
by the table). A slot is written only while it is loading and read only while it is visible, and
states change only in the thread that runs the model, between its steps. So no reader ever meets a
half-written slot, whatever a loader thread does, and one step sees one state of the pool.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dsruntime.tiers.policy import PoolView

Bytes = npt.NDArray[np.uint8]

NO_SLOT = -1


class CorrectionPool:
    """Slots for the experts of all layers; expert ``key`` is ``layer * experts + expert``.

    The table [layers, experts] int32 exists from the start and never moves, so that kernels may
    hold on to it; the slots come later, when everything else has taken its memory.
    """

    def __init__(self, layers: int, experts: int, slot_bytes: int) -> None:
        self.table = np.full((layers, experts), NO_SLOT, np.int32)
        self.slot_bytes = slot_bytes
        self.memory: Bytes = np.empty((0, slot_bytes), np.uint8)
        self._free: list[int] = []
        self._loading: dict[int, int] = {}
        self._barred: set[int] = set()

    def allocate(self, slots: int) -> None:
        """Take the memory of ``slots`` slots; once. It is written to, so that it is really there.

        Raises:
            RuntimeError: there are slots already.
        """
        if len(self.memory):
            raise RuntimeError(f"the pool has {len(self.memory)} slots already")
        self.memory = np.empty((slots, self.slot_bytes), np.uint8)
        self.memory.fill(0)
        self._free = list(range(slots))[::-1]

    @property
    def slots(self) -> int:
        return len(self.memory)

    @property
    def size_bytes(self) -> int:
        """Of all slots."""
        return self.memory.nbytes

    def slot(self, layer: int, expert: int) -> Bytes | None:
        """The correction of an expert, flat; None: it has only its base."""
        number = int(self.table[layer, expert])
        return None if number == NO_SLOT else self.memory[number]

    def visible(self) -> npt.NDArray[np.bool_]:
        """[keys] whose correction is used."""
        visible: npt.NDArray[np.bool_] = self.table.reshape(-1) != NO_SLOT
        return visible

    def view(self) -> PoolView:
        """As a policy sees it; what loads or cannot be loaded is not to be touched."""
        pinned = np.zeros(self.table.size, bool)
        pinned[[*self._loading, *self._barred]] = True
        return PoolView(self.visible() | pinned, pinned, len(self._free))

    def reserve(self, key: int, evict: int | None = None) -> Bytes:
        """A slot for ``key`` to be written, invisible; the victim's, if one is named.

        Raises:
            ValueError: ``key`` has or awaits one, the victim has none, or no slot is free.
        """
        slot: Bytes = self.memory[self._take(key, evict)]
        return slot

    def _take(self, key: int, evict: int | None) -> int:
        """The number of the slot that `reserve` gives."""
        table = self.table.reshape(-1)
        if table[key] != NO_SLOT or key in self._loading:
            raise ValueError(f"expert {key} has a slot")
        if evict is not None:
            if table[evict] == NO_SLOT:
                raise ValueError(f"expert {evict} has no slot to give")
            self._free.append(int(table[evict]))
            table[evict] = NO_SLOT
        if not self._free:
            raise ValueError("no slot is free")
        self._loading[key] = self._free.pop()
        return self._loading[key]

    def deliver(self, key: int) -> None:
        """In the loader's thread: what `reserve` gave for ``key`` has been written."""

    def publish(self, key: int) -> None:
        """The slot reserved for ``key`` is whole: from here on it is used."""
        self.table.reshape(-1)[key] = self._loading.pop(key)

    def abandon(self, key: int, *, bar: bool = False) -> None:
        """The slot reserved for ``key`` could not be filled; barred, it is not tried again."""
        self._free.append(self._loading.pop(key))
        if bar:
            self._barred.add(key)
