"""The size of a correction pool that takes what is left (`pool_gib: auto`)."""

from __future__ import annotations

from dataclasses import replace

from dsctl.planning.budget import timeline
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import Geometry
from dsctl.planning.host import host_plan
from dsctl.planning.kvcache import KvTable
from dsctl.planning.machine import Machine
from dsctl.planning.speed import slot_bytes


def with_pool(demand: Demand, geometry: Geometry, table: KvTable, machine: Machine) -> Demand:
    """The demand with the pool's size settled: of one rank, the least that any card has left.

    What the engine will really find free is known when it starts; this is what the plan expects.
    """
    if demand.pool_reserve_bytes is None or demand.store == "native":
        return demand
    if demand.device == "cpu":
        host = host_plan(geometry, demand, machine, demand.kv_bytes or 0)
        left = (host.available_bytes - host.load_peak_bytes - demand.pool_reserve_bytes) // max(
            demand.ranks, 1
        )
    else:
        left = min(
            card.capacity_bytes
            - timeline(geometry, demand, table, card.capacity_bytes).steady.resident_bytes
            - demand.pool_reserve_bytes
            for card in machine.cards[: demand.ranks]
        )
    all_experts = geometry.layers * geometry.experts * slot_bytes(geometry, demand)
    return replace(demand, pool_bytes=max(0, min(left, all_experts)))
