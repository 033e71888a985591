"""What a profile asks for, in the planner's own terms: one value, bytes and counts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsctl.errors import ConfigError, KnobError
from dsctl.model.profile import Profile
from dsctl.planning.layers import parse_layers
from dsctl.planning.units import gib

Store = Literal["native", "w2-resident", "w2-cache"]
Build = Literal["pack", "streamed", "layerwise"]


@dataclass(frozen=True)
class Demand:
    """The knobs that decide memory, with defaults resolved.

    `build`: how experts reach the card: from a pack, quantized one tensor at a time (our runtime),
    or a layer at a time on the card (the reference runtime on its first start). `peers`: cards
    copy to each other without the detour through host memory. `pool_reserve_bytes`: the pool takes
    what is left but for this (`pool_gib: auto`; `pool_bytes` is 0 until that is known).
    """

    device: Literal["cpu", "cuda"]
    ranks: int
    store: Store
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool
    gpu_memory_utilization: float
    kv_bytes: int | None
    pool_bytes: int
    pool_first: bool
    base_cache_bytes: int
    arena_bytes: int
    mapped_layers: int
    strict: bool
    draft_tokens: int
    eager: bool
    build: Build = "pack"
    peers: bool = True
    pool_reserve_bytes: int | None = None


#: vLLM's own defaults (0.32.0) of what a profile leaves open.
_UTILIZATION = 0.92
_SEQUENCES = 256
_BATCHED_TOKENS = 8192
#: Our runtime's default of the same.
_POOL_RESERVE_GIB = 1.0


def demand_of(profile: Profile, *, build: Build = "pack") -> Demand:
    """The demand of a resolved profile.

    Raises:
        ConfigError: `max_model_len` is not set; no plan can be made without it.
    """
    if profile.value("max_model_len") is None:
        raise ConfigError(
            f"profile {profile.id}: knob 'max_model_len' is not set",
            remedy="set it, e.g. `--set max_model_len=131072`",
        )
    cpu = profile.hardware.device == "cpu"
    pool = profile.value("pool_gib", 0)
    if pool == "auto" and profile.value("kv_cache_memory_bytes") is None:
        raise KnobError(
            f"profile {profile.id}: knob 'pool_gib': auto takes what the KV cache leaves, and the "
            "KV cache has no size of its own",
            remedy="give it one, e.g. `--set kv_cache_memory_bytes=4G`, or give the pool a size",
        )
    return Demand(
        device=profile.hardware.device,
        ranks=profile.value("tensor_parallel_size", 1),
        store=profile.value("experts", "native"),
        max_model_len=profile.value("max_model_len"),
        max_num_seqs=profile.value("max_num_seqs", _SEQUENCES),
        max_num_batched_tokens=profile.value("max_num_batched_tokens", _BATCHED_TOKENS),
        async_scheduling=profile.value("async_scheduling", not cpu),
        gpu_memory_utilization=profile.value("gpu_memory_utilization", _UTILIZATION),
        kv_bytes=profile.value("kv_cache_memory_bytes"),
        pool_bytes=0 if pool == "auto" else gib(pool),
        pool_first=profile.value("pool_allocation", "last") == "first",
        base_cache_bytes=gib(profile.value("base_cache_gib", 0)),
        arena_bytes=gib(profile.value("arena_gib", 0)),
        mapped_layers=len(parse_layers(profile.value("mapped_layers", ""))),
        strict=profile.value("replay", "strict") == "strict",
        draft_tokens=profile.value("draft_tokens", 0),
        eager=profile.value("enforce_eager", False),
        build=build,
        peers=profile.value("peer_to_peer", "on") == "on",
        pool_reserve_bytes=gib(profile.value("pool_reserve_gib", _POOL_RESERVE_GIB))
        if pool == "auto"
        else None,
    )
