"""A plan: what a profile takes of a machine, over the time of a start and once it serves."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from dsctl.model.base import Value


class Verdict(StrEnum):
    """Whether a profile fits a machine; `tight`: it fits with less room than is comfortable."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does-not-fit"


class PhaseBudget(Value):
    """One phase of a start on one GPU (or the host): what lies there and what comes and goes."""

    name: str
    resident: dict[str, int]
    transient_bytes: int = 0
    why: str = ""

    @property
    def resident_bytes(self) -> int:
        """What stays when the phase is over."""
        return sum(self.resident.values())

    @property
    def peak_bytes(self) -> int:
        """The most that is in use during the phase."""
        return self.resident_bytes + self.transient_bytes


class GpuPlan(Value):
    """The budget of one GPU. `components` are those of the steady state."""

    index: int
    name: str
    capacity_bytes: int
    components: dict[str, int]
    steady_bytes: int
    load_peak_bytes: int
    peak_phase: str
    timeline: tuple[PhaseBudget, ...]


class HostPlan(Value):
    """Host memory; the page cache is what the kernel may take back, counted apart."""

    steady_bytes: int
    load_peak_bytes: int
    available_bytes: int
    pinned_bytes: int
    page_cache_bytes: int
    shm_bytes: int
    components: dict[str, int]


class DiskPlan(Value):
    """Disk space: all of it, and what is still missing of it."""

    required_bytes: int
    missing_bytes: int
    free_bytes: int | None
    components: dict[str, int]


class KvPlan(Value):
    """The KV cache: tokens it holds, and full-length requests at once."""

    bytes_per_token: float
    tokens: int
    concurrency_at_max_len: float
    needed_bytes: int


class PoolPlan(Value):
    """The correction pool."""

    slots: int
    slot_bytes: int


class Range(Value):
    """An estimate from `low` to `high`; `bound` is what the hardware would allow at most."""

    low: float
    high: float
    bound: float
    why: str


class TimePlan(Value):
    """Seconds: of the first build, of a load, of everything until it serves."""

    build_s: float
    load_s: Range
    ready_s: Range


class SpeedPlan(Value):
    """Tokens per second of one stream (decode) and of a long prompt (prefill)."""

    decode: Range
    prefill: Range


class Plan(Value):
    """The answer of the planner."""

    profile: str
    verdict: Verdict
    gpus: tuple[GpuPlan, ...]
    host: HostPlan
    disk: DiskPlan
    kv: KvPlan
    correction_pool: PoolPlan | None = None
    time: TimePlan
    speed: SpeedPlan | None = None
    quality: str = ""
    reasons: tuple[str, ...] = ()
    assumed_machine: bool = False
    inputs: dict[str, Any] = Field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether it can be started."""
        return self.verdict is not Verdict.DOES_NOT_FIT
