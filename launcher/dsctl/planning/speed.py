"""How long a start takes and how fast it serves: rooflines, shown as ranges."""

from __future__ import annotations

from dsctl.model.plan import Range, SpeedPlan, TimePlan
from dsctl.planning import constants as k
from dsctl.planning.budget import Weights
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import Geometry, on_rank, rope_bytes
from dsctl.planning.machine import Machine

#: Bytes of one cached token of one layer, of one index key of a ratio-4 layer (fp8_ds_mla).
_KV_BYTES, _INDEX_KEY_BYTES = 584, 132


def touched_per_token(geometry: Geometry, demand: Demand, *, depth: int, rows: float = 1) -> float:
    """Bytes one rank reads to decode one step of `rows` tokens of one stream at `depth`.

    Every dense weight but the embedding table once; the routed experts the rows visit (their union,
    as if routed evenly), in the form they are kept in; the KV cache at that depth.
    """
    c = geometry.config
    embedding: int = 2 * c["vocab_size"] * c["hidden_size"]
    dense: int = (
        on_rank(geometry.dense, demand.ranks) - rope_bytes(c) - -(-embedding // demand.ranks)
    )
    experts = (
        geometry.layers * visited_experts(geometry, rows) * mean_expert_bytes(geometry, demand)
    )
    experts /= demand.ranks
    return dense + experts + kv_touched(geometry, depth)


def mean_expert_bytes(geometry: Geometry, demand: Demand) -> float:
    """Bytes of one expert as it is read, corrected ones in FP4."""
    if demand.store == "native":
        return geometry.fp4_expert_bytes
    share = min(1.0, pool_slots(geometry, demand) / (geometry.layers * geometry.experts))
    return geometry.w2_expert_bytes + share * (geometry.fp4_expert_bytes - geometry.w2_expert_bytes)


def slot_bytes(geometry: Geometry, demand: Demand) -> int:
    """One slot of the pool on one rank: over a cached base it carries its own scales."""
    whole = geometry.fp4_expert_bytes if demand.store == "w2-cache" else geometry.slot_bytes
    return whole // demand.ranks


def pool_slots(geometry: Geometry, demand: Demand) -> int:
    """Slots of the correction pool."""
    return demand.pool_bytes // slot_bytes(geometry, demand)


def coverage(geometry: Geometry, demand: Demand) -> float:
    """Share of all experts that the base cache has room for."""
    slots = demand.base_cache_bytes // (geometry.w2_expert_bytes // demand.ranks)
    return slots / (geometry.layers * geometry.experts)


def kv_touched(geometry: Geometry, depth: int) -> float:
    """Bytes of KV cache one decoded token reads: windows, selected tokens, all index keys."""
    c = geometry.config
    total = 0.0
    for ratio in geometry.ratios():
        total += min(depth, c["sliding_window"]) * _KV_BYTES
        if ratio == 4:
            total += depth / 4 * _INDEX_KEY_BYTES
            total += min(depth / 4, c["index_topk"]) * _KV_BYTES
        elif ratio:
            total += depth / ratio * _KV_BYTES
    return total


def decode(geometry: Geometry, demand: Demand, machine: Machine, *, depth: int = 4096) -> Range:
    """Tokens per second of one stream.

    The slow end takes every row of a step to visit experts of its own; the bound takes half of
    those beyond the first row's as shared, as neighbouring tokens do.
    """
    rows = 1 + demand.draft_tokens
    worst = step_s(geometry, demand, machine, depth=depth, rows=rows)
    best = step_s(geometry, demand, machine, depth=depth, rows=1 + demand.draft_tokens / 2)
    tokens, why = 1.0, "memory bandwidth over bytes touched per token"
    if demand.draft_tokens:
        tokens = 1 + demand.draft_tokens * k.ACCEPTANCE[demand.draft_tokens]
        why += f", {tokens:.2f} tokens per step from {demand.draft_tokens} drafted"
    slow = worst + miss_s(geometry, demand, machine)
    low, high = k.DECODE_EFFICIENCY
    return Range(low=tokens / slow * low, high=tokens / best * high, bound=tokens / best, why=why)


def step_s(
    geometry: Geometry, demand: Demand, machine: Machine, *, depth: int, rows: float
) -> float:
    """Seconds of one decode step of one stream with `rows` tokens, at full bandwidth."""
    card = machine.cards[0]
    step = touched_per_token(geometry, demand, depth=depth, rows=rows) / card.memory_bytes_per_s
    if demand.ranks > 1:
        one = k.ALL_REDUCE_S + (0.0 if demand.peers else k.THROUGH_HOST_S)
        step += 2 * geometry.layers * one
    if demand.mapped_layers:
        visited = visited_experts(geometry, rows)
        moved = demand.mapped_layers * visited * geometry.w2_expert_bytes
        step += moved / card.link_bytes_per_s
    return step * (1 + k.DRAFT_STEP_SHARE * demand.draft_tokens / 3)


def visited_experts(geometry: Geometry, rows: float) -> float:
    """Distinct experts of a layer that `rows` evenly routed tokens visit."""
    missed: float = (1 - geometry.top_k / geometry.experts) ** rows
    return geometry.experts * (1 - missed)


def miss_s(geometry: Geometry, demand: Demand, machine: Machine) -> float:
    """Seconds a step waits for experts the base cache lacks, all routed evenly (worst case)."""
    if demand.store != "w2-cache":
        return 0.0
    missing = max(0.0, 1.0 - coverage(geometry, demand))
    moved = geometry.layers * geometry.top_k * missing * geometry.w2_expert_bytes
    return moved / machine.cards[0].link_bytes_per_s


def prefill(geometry: Geometry, demand: Demand, machine: Machine, weights: Weights) -> Range:
    """Tokens per second of a long prompt: arithmetic, or reading every expert once per batch."""
    c = geometry.config
    active = on_rank(geometry.dense, 1) - rope_bytes(c) - 4 * c["vocab_size"] * c["hidden_size"]
    active += geometry.layers * geometry.top_k * geometry.expert_weights
    compute = k.PREFILL_FLOPS * demand.ranks / (2 * active)
    read = (weights.dense + geometry.layers * _layer(weights, demand)) / machine.cards[
        0
    ].memory_bytes_per_s
    bound = min(compute, demand.max_num_batched_tokens / read)
    low, high = k.PREFILL_EFFICIENCY
    return Range(
        low=bound * low,
        high=bound * high,
        bound=bound,
        why="arithmetic" if bound == compute else "every expert is read once per batch",
    )


def _layer(weights: Weights, demand: Demand) -> int:
    return weights.layer_fp4 if demand.store == "native" else weights.layer_w2


def speed_plan(
    geometry: Geometry, demand: Demand, machine: Machine, weights: Weights
) -> SpeedPlan | None:
    """Decode and prefill; nothing is said about a CPU."""
    if not machine.cards or demand.device == "cpu":
        return None
    return SpeedPlan(
        decode=decode(geometry, demand, machine),
        prefill=prefill(geometry, demand, machine, weights),
    )


def time_plan(geometry: Geometry, demand: Demand, machine: Machine, weights: Weights) -> TimePlan:
    """Seconds to build what is missing, to load, and until it serves."""
    if demand.device == "cpu":
        load = Range(low=1.0, high=10.0, bound=1.0, why="a few megabytes")
        ready = Range(low=20.0, high=60.0, bound=20.0, why="three processes import the engine")
        return TimePlan(build_s=0.0, load_s=load, ready_s=ready)
    read = (weights.dense + weights.experts + weights.draft) * demand.ranks
    fast = read / machine.disk_bytes_per_s
    slow = max(fast, read / k.SLOW_LOAD_BYTES_PER_S / demand.ranks)
    build = 0.0
    if demand.store != "native" and demand.build != "pack":
        raw = geometry.layers * geometry.experts * geometry.fp4_expert_bytes
        build = raw / min(k.QUANTIZE_BYTES_PER_S, machine.disk_bytes_per_s)
    load = Range(
        low=fast,
        high=slow,
        bound=fast,
        why=f"{read / 1e9:.0f} GB from disk at {machine.disk_bytes_per_s / 1e9:.1f} GB/s at best",
    )
    warm_low, warm_high = k.WARM_S
    ready = Range(
        low=k.IMPORT_S + fast + warm_low,
        high=k.IMPORT_S + build + slow + warm_high,
        bound=k.IMPORT_S + fast + warm_low,
        why="imports, load, autotuning, capture, warm-up",
    )
    return TimePlan(build_s=build, load_s=load, ready_s=ready)
