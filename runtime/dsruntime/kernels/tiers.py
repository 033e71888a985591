"""One rank's tiers on a device: the store of the CPU path, with pool, base and counts on the card.

Policy, agreement between ranks, heat and metrics are `tiers.rank` and `tiers.store` as they are.
What differs is where bytes lie, and that routing is counted by a kernel: the counts of a step come
to the host while the next one runs, so a decision is a step behind and no step waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dsruntime.kernels.device_pool import DevicePool
from dsruntime.kernels.launch import Planes
from dsruntime.kernels.moe import LayerPlanes, Workspace
from dsruntime.kernels.possible import require_possible
from dsruntime.tiers.base import Bases
from dsruntime.tiers.hostmem import host_memory
from dsruntime.tiers.rank import RankTiers
from dsruntime.tiers.settings import TierSettings
from dsruntime.tiers.store import TierStore

WORKSPACE_TOKENS = 1024
"""Larger steps go through the kernels in parts of so many tokens."""


class UseCounts:
    """How often each expert was asked for, counted on the device, read a step later."""

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.on_device = torch.zeros(layers, experts, dtype=torch.int32, device=device)
        self._host = torch.zeros(
            layers, experts, dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        self._copied: torch.cuda.Event | None = None
        self._begun = False

    def take(self) -> npt.NDArray[np.int64]:
        """[layers * experts] of the step before last; begins to fetch those of the last.

        Waits for that earlier step, which has ended long ago or is about to: all ranks must see
        the same counts in the same step, or their pools would drift apart.
        """
        if self._copied is not None:
            self._copied.synchronize()
        counts = self._host.numpy().reshape(-1).astype(np.int64)
        self._host.copy_(self.on_device, non_blocking=True)
        self.on_device.zero_()
        if self.on_device.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()
        return counts

    def forget(self) -> None:
        """What warm-up routed."""
        self.on_device.zero_()
        if self._copied is not None:
            self._copied.synchronize()
        self._host.zero_()


class DeviceStore(TierStore[Any]):
    """`TierStore` whose routing is counted elsewhere."""

    def add(self, counts: npt.NDArray[np.int64]) -> None:
        """[keys] uses of a step."""
        self._counts += counts


class DeviceTiers(RankTiers):
    """`RankTiers` with its memory on a device."""

    def __init__(self, settings: TierSettings, model: str, device: torch.device) -> None:
        require_possible(settings)
        super().__init__(settings, model)
        self.device = device
        self.headroom_bytes = 0  # of the largest step, beyond what is held between steps
        self._counts: UseCounts | None = None
        self._work: Workspace | None = None

    def load(self, row: int) -> LayerPlanes:
        """Read a layer's base rows to the device, one at a time through a pinned row.

        Raises:
            ShapeError: no tile of the kernels fits these experts.
            CorruptError: a row is damaged and the reader cannot make it again.
        """
        store, reader = self.store, self._reader
        assert store is not None
        pool = store.pool
        assert isinstance(pool, DevicePool)
        experts, geometry = reader.geometry.experts, reader.geometry
        planes = Planes(geometry.shape, geometry.correction)
        size = planes.base.size_bytes
        base = torch.empty(experts, size, dtype=torch.uint8, device=self.device)
        staging = host_memory(1, size).rows[0]
        for expert in range(experts):
            reader.base(row, expert, out=staging)
            base[expert].copy_(torch.from_numpy(staging))
        return LayerPlanes(
            planes,
            base,
            base_rows=torch.arange(experts, dtype=torch.int32, device=self.device),
            slots=pool.slot_table[row],
            uses=self.counts.on_device[row],
            pool=pool.address,
        )

    def workspace(self, planes: Planes, topk: int, dtype: torch.dtype) -> Workspace:
        """The buffers of all layers; made when the first asks."""
        if self._work is None:
            experts = self._reader.geometry.experts
            self._work = Workspace(planes, experts, topk, WORKSPACE_TOKENS, dtype, self.device)
        return self._work

    @property
    def counts(self) -> UseCounts:
        """The counts of all layers; made when the first is asked for, before any capture."""
        if self._counts is None:
            geometry = self._reader.geometry
            self._counts = UseCounts(len(geometry.layers), geometry.experts, self.device)
        return self._counts

    def allocate_pool(self) -> str:
        """As on the host; what warm-up routed is forgotten."""
        said = super().allocate_pool()
        self.counts.forget()
        return said

    def after_step(self) -> None:
        """Counts, then moves; vLLM warms up with steps of its own, before there is a pool."""
        if isinstance(self.store, DeviceStore) and self.store.pool.slots:
            self.store.add(self.counts.take())
        super().after_step()

    def _new_store(self, reader: Any, bases: Bases, dtype: torch.dtype) -> TierStore[Any]:
        def new_pool(layers: int, experts: int, slot_bytes: int) -> DevicePool:
            return DevicePool(layers, experts, slot_bytes, self.device)

        return DeviceStore(reader, self._policy(), dtype, self._ranks, bases, new_pool=new_pool)

    def _room(self) -> tuple[int, int]:
        if self.device.type != "cuda":
            return super()._room()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0] - self.headroom_bytes
        # each rank has a card of its own; all take what the fullest can give
        return self._ranks.least(max(0, free)), 1
