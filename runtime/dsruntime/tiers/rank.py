"""One process's tiers: what the settings ask for, opened over the pack of this rank."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.models.utils import extract_layer_index

from dsruntime.memory import available_bytes
from dsruntime.tiers.agreement import Alone, Ranks, Together
from dsruntime.tiers.base import Bases
from dsruntime.tiers.heat import HeatFile, HeatKeeper, heat_path
from dsruntime.tiers.metrics import Board, Snapshot
from dsruntime.tiers.policy import Fixed, Frequency, Lru, Need, Policy
from dsruntime.tiers.pool_size import slots_for
from dsruntime.tiers.settings import TierSettings
from dsruntime.tiers.steps import Steps
from dsruntime.tiers.store import TierStore

logger = logging.getLogger("dsruntime.tiers")


class RankTiers:
    """One process's tiers, opened when the first layer of the model asks for them."""

    def __init__(self, settings: TierSettings, model: str) -> None:
        self.settings = settings
        self._checkpoint = Path(model)
        self.store: TierStore[Any] | None = None
        self.steps: Steps | None = None
        self.layers = 0
        self._reader: Any = None
        self._ranks: Ranks = Alone()
        self._keeper: HeatKeeper | None = None
        self._board: Board | None = None

    def open(self, dtype: torch.dtype) -> TierStore[Any]:
        """The store; opens the pack of this rank.

        Raises:
            PackError: no pack, damaged, made for other ranks or from another checkpoint.
        """
        if self.store is None:
            from vllm.distributed import (
                get_tensor_model_parallel_rank,
                get_tensor_model_parallel_world_size,
                get_tp_group,
            )

            rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
            reader = self._reader = self._rows(rank, ranks)
            if ranks > 1:
                self._ranks = Together(get_tp_group().ranks)
            try:
                bases = Bases(reader, self.settings.experts, self.settings)
            except ValueError as error:
                raise ValueError(f"additional-config: dsruntime.{error}") from None
            self.store = self._new_store(reader, bases, dtype)
            self.steps = Steps(self.store, self.settings, self._ranks)
            if self.settings.pool_allocation == "first":
                self._allocate(self.store)
        return self.store

    def _new_store(self, reader: Any, bases: Bases, dtype: torch.dtype) -> TierStore[Any]:
        settings = self.settings
        ensure = settings.prefill_tokens if settings.prefill_policy == "ensure" else None
        return TierStore(reader, self._policy(), dtype, self._ranks, bases, ensure)

    def _room(self) -> tuple[int, int]:
        """Bytes free for pools, and how many ranks share them; asks all, before one takes."""
        return self._ranks.least(available_bytes()), self._ranks.count

    def row(self, layer: Any, experts: int) -> int:
        """The pack's row block of a vLLM layer.

        Raises:
            ValueError: the pack does not have it, or experts are spread over ranks.
        """
        name = f"layers.{extract_layer_index(layer.layer_name)}"
        geometry = self._reader.geometry
        if name not in geometry.layers:
            raise ValueError(f"{self._reader.directory}: the pack has no {name}")
        if experts != geometry.experts:
            raise ValueError(
                f"{layer.layer_name}: {experts} experts here, {geometry.experts} in the pack; "
                f"{self.settings.experts} cannot spread experts over ranks: "
                "drop --enable-expert-parallel"
            )
        return int(self._reader.layer_index(name))

    def allocate_pool(self) -> str:
        """Give the pool its memory; what to say of it.

        Raises:
            ValueError: no layer uses the tiers, or the memory is not there.
        """
        if self.store is None or not self.layers:
            raise ValueError("additional-config: dsruntime.experts: no layer of this model took it")
        pool = self.store.pool
        if not pool.slots:
            self._allocate(self.store)
        self.store.forget()
        warm = self._warm(self.store) if self.settings.heat else ""
        return (
            f"{self.layers} layers at 2 bits {self.store.bases.describe()}, "
            f"correction pool of {pool.slots} slots "
            f"({pool.slots / pool.table.size:.1%} of the experts, "
            f"{pool.size_bytes / 2**30:.2f} GiB), policy {self.settings.pool_policy}{warm}"
        )

    def _allocate(self, store: TierStore[Any]) -> None:
        settings, pool = self.settings, store.pool
        free, sharing = self._room()
        slots = slots_for(
            settings.pool_bytes,
            reserve_bytes=settings.pool_reserve_bytes,
            free_bytes=free,
            ranks=sharing,
            slot_bytes=pool.slot_bytes,
            most=pool.table.size,
        )
        store.allocate(slots)

    def _warm(self, store: TierStore[Any]) -> str:
        """Begin with the heat of the last start; what to say of it."""
        identity = self._reader.identity
        geometry = self._reader.geometry
        path = heat_path(self.settings.heat_dir, identity)
        file = HeatFile(path, identity, geometry.layers, geometry.experts)
        if self._reader.rank == 0:
            self._keeper = HeatKeeper(file, self.settings.heat_every_s)
        heat = file.read()
        # ranks that begin with different heats would decide different moves
        mark = 0 if heat is None else zlib.crc32(heat.tobytes()) + 1
        if self._ranks.least(mark) != -self._ranks.least(-mark):
            logger.warning("%s: the ranks read different heats; the pool starts cold", path)
            return ""
        if heat is None:
            return ""
        return f", {store.warm(heat)} slots warm from {path}"

    def after_step(self) -> None:
        """Moves between steps, and what is told of them."""
        store = self.store
        if store is None:
            return
        store.step()
        if self._keeper is not None:
            self._keeper.after_step(lambda: store.heat)
        self._show()

    def show_on(self, board: Board | None) -> None:
        """Where figures go from now on."""
        self._board = board
        self._show()

    def _show(self) -> None:
        if self._board is not None and self.store is not None and self.steps is not None:
            self._board.show(Snapshot(self.store.snapshot(), self.steps.snapshot()))

    def close(self) -> None:
        """Stop promoting, keep the heat and release the pack."""
        if self.store is not None:
            if self._keeper is not None:
                self._keeper.close(self.store.heat)
            self.store.close()
            self.store.bases.close()
            self._reader.close()

    def _rows(self, rank: int, ranks: int) -> Any:
        """A rank's rows: a `PackReader`, or what makes them from the checkpoint."""
        # not at the top: they import numba, over which vLLM's kernel registry trips at start
        from dsruntime.pack.direct import CheckpointRows
        from dsruntime.pack.errors import StaleError
        from dsruntime.pack.reader import Check, PackReader

        if self.settings.pack_dir is None:
            return CheckpointRows(self._checkpoint, rank, ranks)
        reader = PackReader(
            self.settings.pack_dir,
            rank,
            check=Check.ALWAYS,  # rows are read again and again, and disks forget
            checkpoint=self._checkpoint,  # damaged rows are made again from it
        )
        if reader.geometry.tensor_parallel != ranks:
            raise StaleError(
                f"{reader.directory}: made for {reader.geometry.tensor_parallel} ranks, the "
                f"engine has {ranks}",
                remedy=f"`dsctl pack build --tp {ranks}`",
            )
        self._check_source(reader)
        return reader

    def _check_source(self, reader: Any) -> None:
        """`StaleError` where the pack is of other weights; unchanged shards are not read again."""
        from dsruntime.pack import identity
        from dsruntime.pack.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(self._checkpoint)
        cache = identity.DigestCache(identity.default_cache())
        digests = identity.checkpoint_digests(checkpoint, cache, known=reader.manifest)
        identity.require_same(reader.manifest, checkpoint, digests)

    def _policy(self) -> Policy[Any]:
        settings = self.settings
        frequency = Frequency(
            per_step=settings.pool_per_step,
            hysteresis=settings.pool_hysteresis,
            half_life_steps=settings.pool_half_life_steps,
        )
        policies: dict[str, Policy[Any]] = {
            "frequency": frequency,
            "lru": Lru(per_step=settings.pool_per_step),
            "need": Need(frequency),
            "fixed": Fixed(),
        }
        return policies[settings.pool_policy]
