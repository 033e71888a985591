"""The load peak: what is still to come against what is left, early enough to act.

What counts for the host is `MemAvailable` (the kernel's own estimate of what can be had without
swapping) and, where a control group limits the engine, what is left under that limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsctl.model.event import Phase
from dsctl.model.plan import GpuPlan
from dsctl.model.sample import Action, Advice, Level, Sample, Verdict, Window
from dsctl.progress import human_bytes
from dsctl.supervise.rules.context import STARTING, Context

#: A shortfall must be there in this many samples on end before a start is given up for it.
_SURE = 3
#: Growth beyond the plan is projected from the last half minute.
_TREND_S = 30.0
#: Below this share of free memory the kernel starts to reclaim in the way of the load.
_RECLAIM_SHARE = 0.05
#: Phases of the plan in which the engine's cache of keys and values is sized to what is left.
_FLEXIBLE = "KV cache"


@dataclass(frozen=True)
class Room:
    """Host memory at one sample: what the engine holds and may still want, what is left for it.

    `limit`: whether it is a control group's limit that binds, not the machine.
    """

    held_bytes: int
    wanted_bytes: int
    left_bytes: int
    limit: bool

    @property
    def short_bytes(self) -> int:
        """What will be missing; negative: what will remain."""
        return self.wanted_bytes - self.left_bytes


def room(window: Window, context: Context) -> Room | None:
    """The host's room at the newest sample; None where it cannot be told."""
    last = window.last
    if last is None or last.host is None or context.plan is None or not last.processes:
        return None
    held = _held(last) or 0
    wanted = max(context.plan.host.load_peak_bytes - held, 0)
    if held > context.plan.host.load_peak_bytes:
        wanted = _trend(window)
    limits = context.limits
    reserve = max(limits.reserve_bytes, round(limits.reserve_share * last.host.total_bytes))
    left = last.host.available_bytes - reserve
    under_limit = _left_in_group(last)
    if under_limit is not None and under_limit < left:
        return Room(held, wanted, under_limit, limit=True)
    return Room(held, wanted, left, limit=False)


def host_peak(window: Window, context: Context) -> Verdict | None:
    """Will host memory last through the load? The mildest thing that helps is advised first."""
    last = window.last
    now = room(window, context)
    if now is None or last is None or last.phase not in STARTING:
        return None
    if now.short_bytes <= 0:
        return _drop_cache(last, now, context)
    text = (
        f"the load needs {human_bytes(now.wanted_bytes)} more of host memory, "
        f"{human_bytes(max(now.left_bytes, 0))} are left"
        + (" under the control group's limit" if now.limit else "")
    )
    numbers = _numbers(now)
    if finished := _droppable(last, context):
        return _verdict(text, numbers, None, _drop(finished))
    if context.background:
        why = "background work of ours takes memory that the load needs"
        return _verdict(
            text, numbers, None, Advice(action=Action.PAUSE_BACKGROUND, why=why), Level.WARN
        )
    if not _sure(window, context):
        return _verdict(text, numbers, None, None, Level.WARN)
    short = human_bytes(now.short_bytes)
    return _verdict(
        f"{text}: {short} will be missing; going on would end in swapping or in a kill",
        numbers,
        "container.oom-killed" if now.limit else "memory.host-oom-kill",
        Advice(
            action=Action.REFUSE,
            why=f"{short} of host memory will be missing at the peak of the load",
            remedy="raise the container's memory limit"
            if now.limit
            else "close what else uses memory (`ps aux --sort=-rss | head`), or take a smaller "
            "profile (`dsctl plan --profile auto`)",
        ),
    )


def gpu_peak(window: Window, context: Context) -> Verdict | None:
    """Will the card's memory last until the cache is sized, which then takes what is left?

    Anything above the plan at this point of the load stays above it: the excess is added to the
    plan's peak.
    """
    last = window.last
    if last is None or context.plan is None or not last.gpus or last.phase is not Phase.LOADING:
        return None
    for card in last.gpus:
        plan = next((g for g in context.plan.gpus if g.index == card.index), None)
        if plan is None or card.memory_used_bytes is None:
            continue
        peak = _rigid_peak(plan)
        excess = card.memory_used_bytes - peak
        capacity = card.memory_total_bytes or plan.capacity_bytes
        if excess <= 0 or peak + excess <= 0.98 * capacity:
            continue
        over = card.memory_used_bytes > capacity * 0.995
        return Verdict(
            rule="vram-peak",
            level=Level.ACT if over else Level.WARN,
            summary=f"GPU {card.index} holds {human_bytes(card.memory_used_bytes)} while loading, "
            f"{human_bytes(excess)} more than planned, of {human_bytes(capacity)}: "
            + ("nothing is left for the KV cache" if over else "little is left for the KV cache"),
            numbers={
                "used_bytes": float(card.memory_used_bytes),
                "planned_peak_bytes": float(peak),
                "capacity_bytes": float(capacity),
            },
            cause="memory.vram-oom-load" if over else None,
            advice=Advice(
                action=Action.REFUSE,
                why=f"GPU {card.index} is full before the cache is allocated",
                remedy="see what else holds memory of the card (`nvidia-smi`), or make the pool "
                "smaller (`--set pool_gib=N`)",
            )
            if over
            else None,
        )
    return None


def _held(sample: Sample) -> int | None:
    """What the kernel cannot take back from the engine: anonymous and shared memory.

    Shared segments are counted once, by the process that maps most of them.
    """
    if not sample.processes:
        return None
    shared = max(p.shared_bytes for p in sample.processes)
    return sum(p.anonymous_bytes + p.swapped_bytes for p in sample.processes) + shared


def _left_in_group(sample: Sample) -> int | None:
    """Room under the limit; file cache counts towards it but gives way."""
    group = sample.cgroup
    if group is None or group.limit_bytes is None:
        return None
    gives_way = max((group.file_bytes or 0) - (group.shared_bytes or 0), 0)
    return group.limit_bytes - group.current_bytes + gives_way


def _trend(window: Window) -> int:
    """Bytes that will come if it grows on as over the last while, until the load's end."""
    span = window.recent(_TREND_S)
    rate = span.rate(_held) or 0.0
    last = span.samples[-1]
    read = last.checkpoint
    speed = span.rate(lambda s: s.checkpoint.read_bytes if s.checkpoint is not None else None)
    if read is None or not speed or rate <= 0:
        return 0
    return round(rate * (read.total_bytes - read.read_bytes) / speed)


def _sure(window: Window, context: Context) -> bool:
    tail = window.samples[-_SURE:]
    if len(tail) < _SURE:
        return False
    rooms = [
        room(Window.model_construct(samples=window.samples[: len(window.samples) - i]), context)
        for i in range(_SURE)
    ]
    return all(r is not None and r.short_bytes > 0 for r in rooms)


def _drop_cache(last: Sample, now: Room, context: Context) -> Verdict | None:
    """Enough in all, but the kernel must reclaim: give it the cache of finished files first."""
    assert last.host is not None
    finished = _droppable(last, context)
    free = last.host.free_bytes
    group = last.cgroup
    near_limit = (
        group is not None
        and group.limit_bytes is not None
        and group.current_bytes > 0.9 * group.limit_bytes
    )
    scarce = free < _RECLAIM_SHARE * last.host.total_bytes and now.wanted_bytes > free
    if not finished or not (scarce or near_limit):
        return None
    return _verdict(
        f"{human_bytes(free)} are free and {human_bytes(now.wanted_bytes)} more will be needed: "
        f"the page cache of {len(finished)} files that are read goes first",
        _numbers(now),
        None,
        _drop(finished),
    )


def _droppable(last: Sample, context: Context) -> tuple[str, ...]:
    read = last.checkpoint
    if read is None:
        return ()
    return tuple(path for path in read.finished if path not in context.dropped)


def _drop(paths: tuple[str, ...]) -> Advice:
    return Advice(
        action=Action.DROP_PAGE_CACHE,
        why="these files have been read and will not be needed again in this start",
        paths=paths,
    )


def _rigid_peak(plan: GpuPlan) -> int:
    """The plan's peak over the phases before the cache of keys and values is sized."""
    peaks = []
    for phase in plan.timeline:
        if phase.name == _FLEXIBLE:
            break
        peaks.append(phase.peak_bytes)
    return max(peaks, default=plan.load_peak_bytes)


def _numbers(now: Room) -> dict[str, float]:
    return {
        "held_bytes": float(now.held_bytes),
        "wanted_bytes": float(now.wanted_bytes),
        "left_bytes": float(now.left_bytes),
    }


def _verdict(
    summary: str,
    numbers: dict[str, float],
    cause: str | None,
    advice: Advice | None,
    level: Level = Level.ACT,
) -> Verdict:
    return Verdict(
        rule="host-peak",
        level=level,
        summary=summary,
        numbers=numbers,
        cause=cause,
        advice=advice,
    )
