"""What the supervisor sees at one moment, over a window of moments, and what it makes of it.

Reading fills a `Sample` (`supervise/samplers`), deciding turns a `Window` of them into `Verdict`s
(`supervise/rules`, pure), acting carries out a verdict's `Advice`. Every part of a sample is
optional: a reader that failed, hangs or does not apply leaves `None` and says why in `missing`.
`t` counts seconds of an injected clock that never jumps; counters count up since their source
began and are meant to be subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pydantic import Field

from dsctl.model.base import Value
from dsctl.model.event import Phase


class ProcessSample(Value):
    """One process of the engine. `state` is the kernel's letter (R, S, D, Z, …).

    `read_bytes` came from a disk, `read_chars` through any read call; `file_bytes` are mapped
    files that are resident, `locked_bytes` cannot be swapped (pinned buffers among them).
    """

    pid: int
    name: str
    state: str
    resident_bytes: int = 0
    anonymous_bytes: int = 0
    file_bytes: int = 0
    shared_bytes: int = 0
    locked_bytes: int = 0
    swapped_bytes: int = 0
    cpu_s: float = 0.0
    major_faults: int = 0
    read_bytes: int | None = None
    read_chars: int | None = None
    write_bytes: int | None = None


class CgroupSample(Value):
    """Memory of the engine's control group. File cache counts towards `current_bytes`."""

    version: int
    path: str
    current_bytes: int
    limit_bytes: int | None = None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    shared_bytes: int | None = None
    swap_bytes: int | None = None
    #: Counters: allocations that hit the limit, and kills for lack of memory.
    limit_hits: int | None = None
    oom_kills: int | None = None


class Stall(Value):
    """Pressure on one resource in percent of the last 10 s: some / all tasks waited."""

    some: float
    full: float


class HostSample(Value):
    """Memory of the machine; counters since boot."""

    total_bytes: int
    available_bytes: int
    free_bytes: int
    cached_bytes: int = 0
    shared_bytes: int = 0
    locked_bytes: int = 0
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    major_faults: int | None = None
    oom_kills: int | None = None
    memory_stall: Stall | None = None
    io_stall: Stall | None = None
    cpu_stall: Stall | None = None


class CheckpointSample(Value):
    """How much of the checkpoint the engine has read. `how`: by which of the ways to tell."""

    total_bytes: int
    read_bytes: int
    how: str
    #: Files it is done with: they are open and mapped no more, by any process of the engine.
    finished: tuple[str, ...] = ()


class GpuSample(Value):
    """One GPU now; what the card does not answer is `None`. `throttled_by`: NVML's words."""

    index: int
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: float | None = None
    throttled_by: tuple[str, ...] = ()


class Xid(Value):
    """One Xid of the kernel log: the driver's error number and the card it is about."""

    code: int
    bdf: str
    text: str
    t: float


class EngineMetrics(Value):
    """vLLM's `/metrics`. Counters but for `running`, `waiting` and `kv_usage` (0 to 1)."""

    running: float
    waiting: float
    iterations: float | None = None
    kv_usage: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None


class LogSample(Value):
    """The engine's log as far as it has been read. `news_at`: `t` of the last line that is no
    repetition (waiting messages and periodic statistics are none); `waits`: how often
    "No available shared memory broadcast block" stood in it, which decides nothing by itself."""

    lines: int
    size_bytes: int
    line_at: float | None = None
    news_at: float | None = None
    waits: int = 0
    errors: int = 0
    last_line: str = ""
    shards_done: int | None = None
    shards_total: int | None = None


class ContainerEvent(Value):
    """Something the container engine told about our container (`oom`, `die`, `restart`, …)."""

    t: float
    action: str
    exit_code: int | None = None


class Sample(Value):
    """Everything seen at time `t`. `wall_t`: Unix time then; it may jump, `t` does not.

    `alive`: the engine's first process runs. `http_ok`: it answers HTTP with a good status.
    """

    t: float
    wall_t: float
    phase: Phase
    alive: bool = True
    http_ok: bool | None = None
    processes: tuple[ProcessSample, ...] | None = None
    cgroup: CgroupSample | None = None
    host: HostSample | None = None
    checkpoint: CheckpointSample | None = None
    gpus: tuple[GpuSample, ...] | None = None
    xids: tuple[Xid, ...] = ()
    metrics: EngineMetrics | None = None
    log: LogSample | None = None
    container_events: tuple[ContainerEvent, ...] = ()
    missing: dict[str, str] = Field(default_factory=dict)

    def sum(self, part: str) -> int | None:
        """A counter of `ProcessSample` over all processes; None where no process tells it."""
        values = [getattr(p, part) for p in self.processes or ()]
        known = [v for v in values if v is not None]
        return sum(known) if known else None


class Window(Value):
    """The newest samples, oldest first: what rules decide on."""

    samples: tuple[Sample, ...] = ()

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    @property
    def span_s(self) -> float:
        """Time from the oldest to the newest sample."""
        return self.samples[-1].t - self.samples[0].t if self.samples else 0.0

    def add(self, sample: Sample, *, keep_s: float) -> Window:
        """With one more sample, without those that are older than `keep_s` before it."""
        kept = tuple(s for s in self.samples if s.t >= sample.t - keep_s)
        return Window.model_construct(samples=(*kept, sample))

    def recent(self, span_s: float) -> Window:
        """Only the samples of the last `span_s`."""
        if not self.samples:
            return self
        since = self.samples[-1].t - span_s
        return Window.model_construct(samples=tuple(s for s in self.samples if s.t >= since))

    def series(self, read: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
        """(t, value) of the samples in which the value is known."""
        values = ((s.t, read(s)) for s in self.samples)
        return [(t, v) for t, v in values if v is not None]

    def gain(self, read: Callable[[Sample], float | None]) -> float | None:
        """Growth of a counter from its first to its last known value.

        None with fewer than two readings; a counter that began anew (fell) counts from there.
        """
        points = self._risen(read)
        return points[-1][1] - points[0][1] if len(points) > 1 else None

    def rate(self, read: Callable[[Sample], float | None]) -> float | None:
        """`gain` per second; None where no time passed between the readings."""
        points = self._risen(read)
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return None
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])

    def _risen(self, read: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
        """The series of a counter since it last fell."""
        points = self.series(read)
        start = next(
            (i for i in range(len(points) - 1, 0, -1) if points[i][1] < points[i - 1][1]), 0
        )
        return points[start:]


class Level(StrEnum):
    """How much a verdict matters: nothing to say, worth telling, a warning, time to act."""

    FINE = "fine"
    TELL = "tell"
    WARN = "warn"
    ACT = "act"


class Action(StrEnum):
    """What a verdict suggests. Whoever acts may do less, never something else."""

    WAIT = "wait"  # it advances: give it more time
    DROP_PAGE_CACHE = "drop-page-cache"  # of `paths`, with samplers.pagecache
    PAUSE_BACKGROUND = "pause-background"  # background work of ours
    REFUSE = "refuse"  # take the start down before the machine thrashes
    CONTROL_ARM = "control-arm"  # take down, and try once with peer access off
    RETRY = "retry"  # the same again after `wait_s`
    RETRY_CHANGED = "retry-changed"  # again with `knob` set to `value`, after `wait_s`
    RESTART = "restart"  # a running engine that died or stalled, after `wait_s`
    STOP = "stop"  # failed; `why` and `remedy` say why and what to do


class Advice(Value):
    """One thing to do, and why in words."""

    action: Action
    why: str
    remedy: str = ""
    knob: str | None = None
    value: Any = None
    wait_s: float = 0.0
    paths: tuple[str, ...] = ()


class Verdict(Value):
    """What one rule says about a window: `summary` in one line for people, `numbers` by name
    (with their unit as suffix), the cause id of the contract where one is named."""

    rule: str
    level: Level
    summary: str
    numbers: dict[str, float] = Field(default_factory=dict)
    cause: str | None = None
    advice: Advice | None = None


class Outlook(Value):
    """How far a phase is. `expected_s` with `expected_from` (`plan`, `history`, or "" where
    nothing is known); `done_bytes` of `total_bytes` and `rate_bytes_s` while loading."""

    phase: Phase
    elapsed_s: float
    expected_s: float | None = None
    expected_from: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    left_s: float | None = None
    words: str = ""
