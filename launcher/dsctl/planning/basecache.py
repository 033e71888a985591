"""What a base cache can hold, and what a step over it needs. Pure."""

from __future__ import annotations

from dsctl.errors import KnobError
from dsctl.model.plan import Verdict
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import Geometry
from dsctl.planning.units import ceil_div, show

#: Of the runtime (`dsruntime.tiers.cache`): below it the engine refuses to start.
LEAST_EXPERTS = 4
#: Of a cache's rows, the share that prompts stream through, and its most.
_SCRATCH_SHARE, _MOST_SCRATCH = 8, 32


def require_sense(
    profile_id: str, demand: Demand, geometry: Geometry, mapped: frozenset[int]
) -> None:
    """Settings of the base that no machine could serve.

    Raises:
        KnobError: names the knob.
    """
    if demand.store == "w2-cache" and not demand.base_cache_bytes:
        raise KnobError(
            f"profile {profile_id}: knob 'base_cache_gib' is not set; w2-cache needs memory to "
            "cache experts in",
            remedy="set it, e.g. `--set base_cache_gib=64`",
        )
    given = {
        "base_cache_gib": demand.base_cache_bytes,
        "arena_gib": demand.arena_bytes,
        "replay": not demand.strict,
    }
    idle = [knob for knob, value in given.items() if value]
    if demand.store != "w2-cache" and idle:
        raise KnobError(
            f"profile {profile_id}: knob {idle[0]!r} has no meaning with experts={demand.store}: "
            "it belongs to w2-cache",
            remedy="leave it out",
        )
    absent = sorted(layer for layer in mapped if layer >= geometry.layers)
    if absent:
        raise KnobError(
            f"profile {profile_id}: knob 'mapped_layers': there is no layer {absent[0]}; the model "
            f"has layers 0 to {geometry.layers - 1}",
            remedy="name layers that it has, e.g. `--set mapped_layers=0-2`",
        )


def slots_of(geometry: Geometry, demand: Demand) -> int:
    """Experts that the cache of one rank keeps, beside the scratch of prompts."""
    rows = demand.base_cache_bytes // ceil_div(geometry.w2_expert_bytes, demand.ranks)
    scratch = max(2, min(_MOST_SCRATCH, rows // _SCRATCH_SHARE) & ~1)
    return max(0, rows - scratch)


def judge(geometry: Geometry, demand: Demand, reasons: list[str]) -> Verdict:
    """Whether the cache serves: not below four experts, and slowly below a step's working set."""
    if demand.store != "w2-cache":
        return Verdict.FITS
    expert = ceil_div(geometry.w2_expert_bytes, demand.ranks)
    cached = geometry.layers - demand.mapped_layers
    slots = slots_of(geometry, demand)
    if demand.base_cache_bytes < LEAST_EXPERTS * expert:
        reasons.append(
            f"base_cache_gib: {show(demand.base_cache_bytes)} hold "
            f"{demand.base_cache_bytes // expert} experts of {show(expert)}; the engine needs "
            f"{LEAST_EXPERTS} at least"
        )
        return Verdict.DOES_NOT_FIT
    rows = demand.max_num_seqs * (1 + demand.draft_tokens)
    working = cached * min(geometry.experts, geometry.top_k * rows)
    if slots >= working:
        return Verdict.FITS
    reasons.append(
        f"base_cache_gib: {slots} experts are cached, and a step of {demand.max_num_seqs} "
        f"sequences uses up to {working}: such steps fetch layer by layer, right but slowly"
    )
    return Verdict.TIGHT
