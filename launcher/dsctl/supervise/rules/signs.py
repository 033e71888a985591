"""Signs of life that several rules share: what moved over the last seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dsctl.model.sample import GpuSample, Sample, Window
from dsctl.supervise.rules.context import Limits

_MOVED_BYTES = 16 << 20
_READ_BYTES_S = 256 << 10
#: An idle engine's processes wake up now and then: a few hundredths of a core.
_IDLE_CORES = 0.15


@dataclass(frozen=True)
class Signs:
    """What moved in a span. `None`: nobody could see. `cores`: CPU in use, in cores."""

    span_s: float
    loaded_bytes: int | None
    read_bytes_s: float | None
    cores: float | None
    memory_moved: bool | None
    log_news: bool | None
    iterated: bool | None
    states: str

    @property
    def moving(self) -> list[str]:
        """In words, what moves besides CPU time, which a wait can burn too."""
        found = []
        if self.loaded_bytes:
            found.append("bytes of the checkpoint are being read")
        elif self.read_bytes_s is not None and self.read_bytes_s > _READ_BYTES_S:
            found.append(f"it reads {self.read_bytes_s / 1e6:.1f} MB/s")
        if self.memory_moved:
            found.append("its memory changes")
        if self.log_news:
            found.append("its log goes on")
        if self.iterated:
            found.append("the engine iterates")
        return found

    @property
    def works(self) -> bool:
        """Whether its processes use CPU time."""
        return self.cores is not None and self.cores > _IDLE_CORES

    @property
    def blind(self) -> bool:
        """Nothing can be seen of its processes nor of its log: no verdict is possible."""
        return self.cores is None or self.log_news is None


def signs(window: Window, span_s: float) -> Signs | None:
    """The signs of the last `span_s`; None while the window is shorter than that."""
    recent = window.recent(span_s)
    last = recent.last
    # Samples come at intervals: one interval less than the span must do.
    if last is None or len(recent.samples) < 3 or recent.span_s < 0.8 * span_s:
        return None
    first = recent.samples[0]
    return Signs(
        span_s=recent.span_s,
        loaded_bytes=_loaded(first, last),
        read_bytes_s=recent.rate(lambda s: s.sum("read_bytes")),
        cores=_cores(recent),
        memory_moved=_memory_moved(recent),
        log_news=_news(last, span_s),
        iterated=_iterated(first, last),
        states="".join(sorted({p.state for p in last.processes or ()})),
    )


def spins(window: Window, span_s: float, limits: Limits) -> tuple[GpuSample, ...] | None:
    """The cards, if each was busy without drawing power in every sample of the span."""
    recent = window.recent(span_s)
    if len(recent.samples) < 3 or recent.span_s < 0.8 * span_s:
        return None
    for sample in recent.samples:
        if not sample.gpus or not all(_spins(card, limits) for card in sample.gpus):
            return None
    return recent.samples[-1].gpus


def idle_power_w(card: GpuSample, limits: Limits) -> float:
    """Below this a busy card computes nothing."""
    return max(limits.spin_power_w, limits.spin_power_share * (card.power_limit_w or 0.0))


def _spins(card: GpuSample, limits: Limits) -> bool:
    if card.utilization_percent is None or card.power_w is None:
        return False
    busy = card.utilization_percent >= limits.spin_utilization
    return busy and card.power_w < idle_power_w(card, limits)


def _loaded(first: Sample, last: Sample) -> int | None:
    if first.checkpoint is None or last.checkpoint is None:
        return None
    return last.checkpoint.read_bytes - first.checkpoint.read_bytes


def _cores(window: Window) -> float | None:
    """CPU seconds per second of the processes that lived through the span.

    A process that began or ended in it would count its whole life as an instant.
    """
    seen = [s for s in window.samples if s.processes]
    if len(seen) < 2 or seen[-1].t <= seen[0].t:
        return None
    before = {p.pid: p.cpu_s for p in seen[0].processes or ()}
    after = {p.pid: p.cpu_s for p in seen[-1].processes or ()}
    used = sum(max(0.0, after[pid] - before[pid]) for pid in before.keys() & after.keys())
    used += sum(cpu_s for pid, cpu_s in after.items() if pid not in before)
    return used / (seen[-1].t - seen[0].t)


def _memory_moved(window: Window) -> bool | None:
    """Whether the processes' own memory or a card's changed by more than a little."""
    known = False
    amounts: dict[str, list[int]] = {}
    for sample in window.samples:
        if sample.processes:
            amounts.setdefault("host", []).append(
                sum(p.anonymous_bytes + p.shared_bytes for p in sample.processes)
            )
        for card in sample.gpus or ():
            if card.memory_used_bytes is not None:
                amounts.setdefault(f"gpu{card.index}", []).append(card.memory_used_bytes)
    for values in amounts.values():
        known = True
        if max(values) - min(values) > _MOVED_BYTES:
            return True
    return False if known else None


def _news(last: Sample, span_s: float) -> bool | None:
    if last.log is None:
        return None
    return last.log.news_at is not None and last.log.news_at > last.t - span_s


def _iterated(first: Sample, last: Sample) -> bool | None:
    before = first.metrics.iterations if first.metrics is not None else None
    after = last.metrics.iterations if last.metrics is not None else None
    return None if before is None or after is None else after != before
