"""Samples as a test says them: what matters is given, the rest is a quiet, healthy engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsctl.model.event import Phase
from dsctl.model.plan import (
    DiskPlan,
    GpuPlan,
    HostPlan,
    KvPlan,
    PhaseBudget,
    Plan,
    Range,
    TimePlan,
    Verdict,
)
from dsctl.model.sample import (
    CheckpointSample,
    EngineMetrics,
    GpuSample,
    HostSample,
    LogSample,
    ProcessSample,
    Sample,
    Stall,
    Window,
)

GIB = 1 << 30


def process(**given: Any) -> ProcessSample:
    """A worker that sleeps."""
    return ProcessSample(**({"pid": 10, "name": "VLLM::Worker", "state": "S"} | given))


def host(**given: Any) -> HostSample:
    """128 GiB, most of it available, nothing swapped, no pressure."""
    quiet = {
        "total_bytes": 128 * GIB,
        "available_bytes": 110 * GIB,
        "free_bytes": 60 * GIB,
        "swapped_in_bytes": 0,
        "swapped_out_bytes": 0,
        "major_faults": 0,
        "oom_kills": 0,
        "memory_stall": Stall(some=0.0, full=0.0),
    }
    return HostSample(**(quiet | given))


def card(index: int = 0, **given: Any) -> GpuSample:
    """A 96 GB card at rest."""
    rest = {
        "index": index,
        "memory_total_bytes": 95 * GIB,
        "memory_used_bytes": 40 * GIB,
        "utilization_percent": 0.0,
        "power_w": 30.0,
        "power_limit_w": 600.0,
    }
    return GpuSample(**(rest | given))


def spinning(index: int = 0, **given: Any) -> GpuSample:
    """A card that waits in a collective: fully busy at idle power."""
    return card(index, **({"utilization_percent": 100.0, "power_w": 92.0} | given))


def log(**given: Any) -> LogSample:
    """A log that said something once, at the beginning."""
    return LogSample(**({"lines": 10, "size_bytes": 1000, "line_at": 0.0, "news_at": 0.0} | given))


def metrics(**given: Any) -> EngineMetrics:
    """An engine without requests."""
    return EngineMetrics(**({"running": 0.0, "waiting": 0.0, "iterations": 100.0} | given))


def checkpoint(read: float, total: float = 100 * GIB, **given: Any) -> CheckpointSample:
    """So many bytes of a checkpoint read."""
    return CheckpointSample(total_bytes=int(total), read_bytes=int(read), how="test", **given)


def sample(t: float, phase: Phase = Phase.LOADING, **parts: Any) -> Sample:
    """A sample of an engine that does nothing at all."""
    quiet: dict[str, Any] = {"processes": (process(),), "host": host(), "log": log()}
    return Sample(t=t, wall_t=1.7e9 + t, phase=phase, **(quiet | parts))


def window(
    seconds: float,
    parts: Callable[[float], dict[str, Any]] = lambda t: {},
    *,
    every_s: float = 2.0,
    phase: Phase = Phase.LOADING,
    start: float = 1000.0,
) -> Window:
    """Samples every `every_s` over `seconds`; `parts(t)` gives what is not quiet at second t."""
    count = round(seconds / every_s) + 1
    times = [i * every_s for i in range(count)]
    return Window(samples=tuple(sample(start + t, phase, **parts(t)) for t in times))


def plan(*, host_peak: int = 8 * GIB, card_peak: int = 80 * GIB, cards: int = 1) -> Plan:
    """A plan with those peaks: a load of 60 s, ready after 180 s at most."""
    budget = (
        PhaseBudget(name="planes", resident={"expert_planes": card_peak}),
        PhaseBudget(name="KV cache", resident={"expert_planes": card_peak, "kv_cache": 9 * GIB}),
    )
    card_plan = GpuPlan(
        index=0,
        name="RTX PRO 6000",
        capacity_bytes=95 * GIB,
        components={"expert_planes": card_peak},
        steady_bytes=card_peak + 9 * GIB,
        load_peak_bytes=card_peak + 9 * GIB,
        peak_phase="KV cache",
        timeline=budget,
    )
    return Plan(
        profile="test",
        verdict=Verdict.FITS,
        gpus=tuple(card_plan.model_copy(update={"index": i}) for i in range(cards)),
        host=HostPlan(
            steady_bytes=host_peak,
            load_peak_bytes=host_peak,
            available_bytes=110 * GIB,
            pinned_bytes=0,
            page_cache_bytes=0,
            shm_bytes=0,
            components={},
        ),
        disk=DiskPlan(required_bytes=0, missing_bytes=0, free_bytes=None, components={}),
        kv=KvPlan(bytes_per_token=1.0, tokens=1, concurrency_at_max_len=1.0, needed_bytes=1),
        time=TimePlan(
            build_s=0.0,
            load_s=Range(low=30.0, high=60.0, bound=30.0, why="test"),
            ready_s=Range(low=90.0, high=180.0, bound=90.0, why="test"),
        ),
    )
