"""The memory of one GPU over a start: what stays and what comes and goes, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from dsctl.model.plan import PhaseBudget
from dsctl.planning import constants as k
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import Geometry, on_rank
from dsctl.planning.kvcache import KvTable, in_flight_tokens
from dsctl.planning.units import ceil_div


@dataclass(frozen=True)
class Weights:
    """Bytes of weights on one rank; a layer's `planes` are its FP4 codes without scales."""

    dense: int
    experts: int
    draft: int
    layer_fp4: int
    layer_w2: int
    layer_planes: int


@dataclass(frozen=True)
class Timeline:
    """All phases of a start on one GPU; the last one is the steady state."""

    phases: tuple[PhaseBudget, ...]
    kv_needed_bytes: int
    late_bytes: int

    @property
    def steady(self) -> PhaseBudget:
        """What lies there while it serves."""
        return self.phases[-1]

    @property
    def peak(self) -> PhaseBudget:
        """The phase that needs most; the earliest of them."""
        return max(self.phases, key=lambda phase: phase.peak_bytes)


def weights_of(geometry: Geometry, demand: Demand) -> Weights:
    """Weights of one rank as the demand's store keeps them."""
    layer_fp4 = ceil_div(geometry.experts * geometry.fp4_expert_bytes, demand.ranks)
    layer_w2 = ceil_div(geometry.experts * geometry.w2_expert_bytes, demand.ranks)
    per_layer = layer_fp4 if demand.store == "native" else layer_w2
    resident_layers = max(0, geometry.layers - demand.mapped_layers)
    if demand.store == "w2-cache":
        experts = min(demand.base_cache_bytes, geometry.layers * layer_w2)
    else:
        experts = resident_layers * per_layer
    draft = 0
    if demand.draft_tokens:
        draft = on_rank(geometry.draft_dense, demand.ranks) + geometry.draft_layers * per_layer
    planes = ceil_div(geometry.experts * geometry.slot_bytes, demand.ranks)
    dense = on_rank(geometry.dense, demand.ranks)
    return Weights(dense, experts, draft, layer_fp4, layer_w2, planes)


def timeline(geometry: Geometry, demand: Demand, table: KvTable, budget_bytes: int) -> Timeline:
    """Phases of a start; `budget_bytes` is the card's memory the engine is allowed to fill.

    Without `kv_bytes` the KV cache takes what the budget leaves, as vLLM does.
    """
    weights = weights_of(geometry, demand)
    context = k.CUDA_CONTEXT_BYTES + (k.COMMUNICATOR_BYTES if demand.ranks > 1 else 0)
    workspace = workspace_bytes(demand)
    graphs = graph_bytes(demand)
    fixed = context + weights.dense + weights.experts + weights.draft + workspace + graphs
    left = budget_bytes - fixed - demand.pool_bytes
    kv = max(0, left) if demand.kv_bytes is None else demand.kv_bytes
    in_flight = in_flight_tokens(
        demand.max_num_batched_tokens, async_scheduling=demand.async_scheduling
    )
    needed = table.needed_bytes(demand.max_model_len, demand.max_num_seqs, in_flight)
    experts_name = "expert_cache" if demand.store == "w2-cache" else "expert_planes"

    phases: list[PhaseBudget] = []
    resident: dict[str, int] = {}

    def phase(name: str, adds: dict[str, int], transient: int = 0, why: str = "") -> None:
        resident.update({key: size for key, size in adds.items() if size})
        phases.append(
            PhaseBudget(name=name, resident=dict(resident), transient_bytes=transient, why=why)
        )

    pool = {"correction_pool": demand.pool_bytes}
    phase("boot", {"cuda_context": context})
    phase("dense weights", {"dense_weights": weights.dense})
    if demand.pool_first and demand.pool_bytes:
        phase("pool", pool, why="allocated first: it lies under everything that follows")
    transient, why = _expert_transient(demand, weights)
    phase("planes", {experts_name: weights.experts}, transient, why)
    if weights.draft:
        transient, why = _expert_transient(demand, weights)
        phase("draft", {"draft_weights": weights.draft}, transient, why)
    phase("profile run", {"workspace": workspace}, why="one full batch through the model")
    phase("KV cache", {"kv_cache": kv})
    phase("autotune", {}, autotune_bytes(demand), "kernels are tried; in no budget of the engine")
    phase("capture", {"cuda_graphs": graphs})
    if not demand.pool_first and demand.pool_bytes:
        phase("pool", pool, why="allocated last: no temporary of the load lies on top of it")
    phase("steady", {})
    return Timeline(tuple(phases), needed, max(k.RESERVE_BYTES, autotune_bytes(demand)))


def _expert_transient(demand: Demand, weights: Weights) -> tuple[int, str]:
    if demand.store == "native":
        return weights.layer_fp4, "one layer's experts while they are put into the kernel's order"
    if demand.build == "layerwise":
        # The report of a 7 GiB pool failing by some 400 MiB needs both on the card at once.
        return (
            weights.layer_fp4 + weights.layer_planes + k.LAYERWISE_TABLES_BYTES,
            "one layer's experts as stored and as FP4 planes, and look-up tables",
        )
    return k.ROW_BATCH_BYTES, "one batch of rows on its way"


def workspace_bytes(demand: Demand) -> int:
    """What one step of the largest batch needs besides weights and KV cache."""
    moe = interpolate([(at, stays + comes) for at, stays, comes in k.MOE_WORKSPACE], demand)
    share = 1.0 if demand.ranks == 1 else k.MOE_WORKSPACE_SHARE_OF_PAIR
    return round(moe * share) + k.ACTIVATION_BYTES


def interpolate(points: list[tuple[int, int]], demand: Demand) -> float:
    """Linear between the measured points and beyond them; never below zero."""
    at = demand.max_num_batched_tokens
    pairs = list(pairwise(points))
    (x0, y0), (x1, y1) = next((p for p in pairs if at <= p[1][0]), pairs[-1])
    return max(0.0, y0 + (y1 - y0) * (at - x0) / (x1 - x0))


def autotune_bytes(demand: Demand) -> int:
    """What kernel autotuning takes for a moment, growing with batched tokens."""
    extra = (demand.max_num_batched_tokens - 1024) * k.AUTOTUNE_BYTES_PER_TOKEN
    return round(max(0.0, k.AUTOTUNE_AT_1024_BYTES + extra))


def graph_bytes(demand: Demand) -> int:
    """CUDA graphs: a base and a little for every row captured."""
    if demand.eager:
        return 0
    rows = demand.max_num_seqs * (1 + demand.draft_tokens)
    return k.CUDA_GRAPH_BYTES + rows * k.CUDA_GRAPH_BYTES_PER_ROW
