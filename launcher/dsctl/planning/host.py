"""Host memory and disk of a profile."""

from __future__ import annotations

from dsctl.model.plan import DiskPlan, HostPlan
from dsctl.planning import constants as k
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import Geometry, on_rank
from dsctl.planning.machine import Machine
from dsctl.planning.units import ceil_div


def pack_bytes(geometry: Geometry, demand: Demand) -> tuple[int, int]:
    """Bytes of the pack on disk: the 2-bit base, and the corrections; rows padded to pages."""
    if demand.store == "native":
        return 0, 0
    rows = geometry.layers * geometry.experts
    return (
        rows * _page(geometry.w2_expert_bytes),
        rows * _page(geometry.slot_bytes) if demand.pool_bytes else 0,
    )


def host_plan(geometry: Geometry, demand: Demand, machine: Machine, kv_bytes: int) -> HostPlan:
    """What lies in host memory. The page cache is not in `steady`: the kernel takes it back."""
    if demand.device == "cpu":
        return _cpu_host(geometry, demand, machine, kv_bytes)
    base, corrections = pack_bytes(geometry, demand)
    components = {
        "processes": k.HOST_PROCESSES_BYTES + demand.ranks * k.HOST_WORKER_CUDA_BYTES,
    }
    pinned = 0
    if demand.store == "w2-cache":
        if demand.arena_bytes:
            pinned = min(demand.arena_bytes, base)
            components["arena"] = pinned
            components["pack_reader"] = k.ARENA_OVERHEAD_BYTES - k.HOST_WORKER_CUDA_BYTES
        else:
            pinned = base
            components["base_in_host_memory"] = base
    if demand.mapped_layers:
        mapped = demand.mapped_layers * geometry.experts * geometry.w2_expert_bytes
        pinned += mapped
        components["mapped_layers"] = mapped
    shm = shm_bytes(demand)
    components["shm"] = shm
    steady = sum(components.values())
    building = k.PACK_BUILD_BYTES if demand.build != "pack" and demand.store != "native" else 0
    if demand.build == "layerwise":  # the reference runtime stages every expert before it starts
        building = geometry.layers * geometry.experts * geometry.fp4_expert_bytes
    cache = geometry.checkpoint_bytes if demand.store == "native" else base + corrections
    return HostPlan(
        steady_bytes=steady,
        load_peak_bytes=steady + building,
        available_bytes=machine.host_available_bytes,
        pinned_bytes=pinned,
        page_cache_bytes=cache,
        shm_bytes=shm,
        components=components,
    )


def _cpu_host(geometry: Geometry, demand: Demand, machine: Machine, kv_bytes: int) -> HostPlan:
    """On a CPU everything is host memory; dense FP8 is kept as BF16, twice its size."""
    dense = 2 * on_rank(geometry.dense, 1)
    size = geometry.fp4_expert_bytes if demand.store == "native" else geometry.w2_expert_bytes
    layers = max(0, geometry.layers - demand.mapped_layers)  # the mapped are page cache
    experts = layers * geometry.experts * size
    cached = demand.store == "w2-cache"
    arena = min(demand.arena_bytes * demand.ranks, experts) if cached else 0
    if cached:
        experts = demand.base_cache_bytes * demand.ranks
    components = {
        "processes": k.HOST_PROCESSES_BYTES + demand.ranks * k.HOST_WORKER_CPU_BYTES,
        "dense_weights": dense,
        "expert_cache" if cached else "expert_planes": experts,
        "arena": arena,
        "correction_pool": demand.pool_bytes * demand.ranks,
        "kv_cache": kv_bytes * demand.ranks,
        "shm": k.SHM_BASE_BYTES,
    }
    steady = sum(components.values())
    return HostPlan(
        steady_bytes=steady,
        load_peak_bytes=steady + on_rank(geometry.dense, 1),
        available_bytes=machine.host_available_bytes,
        pinned_bytes=0,
        page_cache_bytes=geometry.checkpoint_bytes,
        shm_bytes=k.SHM_BASE_BYTES,
        components=components,
    )


def shm_bytes(demand: Demand) -> int:
    """/dev/shm the engine needs: message queues, and NCCL's buffers where ranks talk."""
    return k.SHM_BASE_BYTES + (k.SHM_PER_RANK_BYTES * demand.ranks if demand.ranks > 1 else 0)


def disk_plan(
    geometry: Geometry,
    demand: Demand,
    machine: Machine,
    *,
    have_checkpoint: bool,
    have_pack: bool,
    have_engine: bool = False,
) -> DiskPlan:
    """Disk space of everything, and of what is not there yet."""
    base, corrections = pack_bytes(geometry, demand)
    components = {
        "checkpoint": geometry.checkpoint_bytes,
        "pack_base": base,
        "pack_corrections": corrections,
        "compiler_caches": k.JIT_CACHE_BYTES if demand.device == "cuda" else k.SHM_BASE_BYTES,
        "engine": k.ENGINE_DISK_BYTES[demand.device],
    }
    there = {
        "checkpoint": have_checkpoint,
        "pack_base": have_pack,
        "pack_corrections": have_pack,
        "engine": have_engine,
    }
    components = {name: size for name, size in components.items() if size}
    missing = sum(size for name, size in components.items() if not there.get(name, False))
    return DiskPlan(
        required_bytes=sum(components.values()),
        missing_bytes=missing,
        free_bytes=machine.disk_free_bytes,
        components=components,
    )


def _page(nbytes: int) -> int:
    return ceil_div(nbytes, k.PACK_PAGE_BYTES) * k.PACK_PAGE_BYTES
