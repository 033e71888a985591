"""The correction pool on a device: the same states as on the host, visible to kernels in order.

A slot is filled in three steps: the loader reads the correction into one pinned row, copies it on a
stream of its own, and the model's thread shows it after a step. Two things must not overtake each
other, and events and streams see to it: a victim's slot is written only when every kernel that may
still read it has ended, and a table entry changes on the model's own stream, so between steps.

Table and address are device memory from the start: a graph captured before there is a pool reads
them anew at each replay.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.tiers.hostmem import host_memory
from dsruntime.tiers.pool import NO_SLOT, CorrectionPool

Bytes = npt.NDArray[np.uint8]


class Copies(Protocol):
    """How bytes get to the device beside the model's work."""

    def mark(self) -> Any:
        """A point in the model's work: all that has been launched by now."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> None:
        """Copy when the work before ``after`` has ended; returns when the copy has."""


class Immediate:
    """On the CPU, where nothing runs beside anything."""

    def mark(self) -> None:
        """Nothing is outstanding."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: Any) -> None:
        """Now."""
        target.copy_(source)


class SideStream:
    """On a card: a stream of its own, which the model's stream never waits for."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = torch.cuda.Event()
        event.record()
        return event

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: torch.cuda.Event) -> None:
        """Only this thread waits. Its current device is the first card unless it says otherwise,
        and entering a stream would make a context there for a rank that has another."""
        torch.cuda.set_device(self._stream.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()


def copies_for(device: torch.device) -> Copies:
    """The way that fits the device."""
    return SideStream(device) if device.type == "cuda" else Immediate()


class DevicePool(CorrectionPool):
    """`CorrectionPool` whose slots, table and address kernels read.

    Attributes:
        slot_table: [layers, experts] int32 on the device; `table` is its image on the host.
        address: [1] int64 on the device: of the slots' memory, 0 before there is any.
    """

    def __init__(self, layers: int, experts: int, slot_bytes: int, device: torch.device) -> None:
        super().__init__(layers, experts, slot_bytes)
        self.slot_table = torch.full((layers, experts), NO_SLOT, dtype=torch.int32, device=device)
        self.address = torch.zeros(1, dtype=torch.int64, device=device)
        self._device_memory = torch.empty(0, slot_bytes, dtype=torch.uint8, device=device)
        self._copies = copies_for(device)
        self._vacant_from: dict[int, Any] = {}
        # one row is enough: the loader is one thread, and delivers before it fetches the next
        self._staging: Bytes = host_memory(1, slot_bytes).rows[0]

    def allocate(self, slots: int) -> None:
        """Take the device memory of ``slots`` slots; once.

        Raises:
            RuntimeError: there are slots already.
        """
        if self.slots:
            raise RuntimeError(f"the pool has {self.slots} slots already")
        self._device_memory = torch.zeros(
            slots, self.slot_bytes, dtype=torch.uint8, device=self.address.device
        )
        self._free = list(range(slots))[::-1]
        self.address.fill_(self._device_memory.data_ptr())

    @property
    def slots(self) -> int:
        return len(self._device_memory)

    @property
    def size_bytes(self) -> int:
        return self._device_memory.nbytes

    def slot(self, layer: int, expert: int) -> Bytes | None:
        """A copy of an expert's correction, for tests and inspection; waits for the device."""
        number = int(self.table[layer, expert])
        if number == NO_SLOT:
            return None
        found: Bytes = self._device_memory[number].cpu().numpy()
        return found

    def reserve(self, key: int, evict: int | None = None) -> Bytes:
        """The pinned row, to be written and then delivered."""
        self._take(key, evict)
        if evict is not None:
            self._set(evict, NO_SLOT)
        self._vacant_from[key] = self._copies.mark()
        return self._staging

    def deliver(self, key: int) -> None:
        """In the loader's thread: from the pinned row to the slot."""
        target = self._device_memory[self._loading[key]]
        self._copies.copy(target, torch.from_numpy(self._staging), self._vacant_from[key])

    def publish(self, key: int) -> None:
        """From the next kernel on."""
        self._vacant_from.pop(key)
        super().publish(key)
        self._set(key, int(self.table.reshape(-1)[key]))

    def abandon(self, key: int, *, bar: bool = False) -> None:
        """The slot stays free."""
        self._vacant_from.pop(key)
        super().abandon(key, bar=bar)

    def _set(self, key: int, slot: int) -> None:
        # a fill carries its value with it: no host buffer that must outlive the launch
        self.slot_table.view(-1)[key].fill_(slot)
