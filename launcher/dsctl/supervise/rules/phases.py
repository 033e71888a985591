"""How far the present phase is, and how much longer it will take."""

from __future__ import annotations

from dsctl.model.event import Phase
from dsctl.model.plan import Plan
from dsctl.model.sample import Outlook, Sample, Window
from dsctl.progress import human_bytes, human_seconds
from dsctl.supervise.rules.context import Context

#: The rate of a load is that of the last half minute: long enough to be calm, short enough to
#: follow a disk that slows down.
_RATE_SPAN_S = 30.0

_DOING = {
    Phase.STARTING: "imports the engine",
    Phase.LOADING: "reads the weights",
    Phase.ALLOCATING: "allocates the KV cache",
    Phase.COMPILING: "compiles and captures graphs",
    Phase.WARMING: "warms up and proves its answers",
}


def expected_from_plan(plan: Plan | None) -> dict[str, float]:
    """Seconds by phase as the plan has them: the load's own, the rest of the start shared out.

    The upper ends of the plan's ranges, so that "longer than expected" means something. What the
    start takes besides the load goes by halves to the imports and to what follows the load.
    """
    if plan is None:
        return {}
    load = plan.time.load_s.high + plan.time.build_s
    rest = max(0.0, plan.time.ready_s.high - load)
    return {
        Phase.STARTING: rest / 2,
        Phase.LOADING: load,
        Phase.ALLOCATING: rest / 8,
        Phase.COMPILING: rest / 4,
        Phase.WARMING: rest / 8,
    }


def outlook(window: Window, context: Context) -> Outlook | None:
    """The outlook at the newest sample; None without one."""
    last = window.last
    if last is None:
        return None
    elapsed = max(0.0, last.t - context.phase_began)
    expected = context.expected_s.get(last.phase)
    source = context.expected_from if expected is not None else ""
    if expected is None and last.phase in _DOING:
        expected = expected_from_plan(context.plan).get(last.phase)
        source = "plan" if expected is not None else ""
    done, total, rate, left = _load(window, last, elapsed)
    if left is None and expected is not None and expected > elapsed:
        left = expected - elapsed
    return Outlook(
        phase=last.phase,
        elapsed_s=elapsed,
        expected_s=expected,
        expected_from=source,
        done_bytes=done,
        total_bytes=total,
        rate_bytes_s=rate,
        left_s=left,
        words=_words(last.phase, elapsed, expected, source, done, total, rate, left),
    )


def _load(
    window: Window, last: Sample, elapsed_s: float
) -> tuple[int | None, int | None, float | None, float | None]:
    """Bytes done and in all, rate, time left of a load; by shards where bytes are not known."""
    if last.phase is not Phase.LOADING:
        return None, None, None, None
    read = last.checkpoint
    log = last.log
    if read is not None and read.read_bytes > 0:
        rate = window.recent(_RATE_SPAN_S).rate(
            lambda s: s.checkpoint.read_bytes if s.checkpoint is not None else None
        )
        left = (read.total_bytes - read.read_bytes) / rate if rate else None
        return read.read_bytes, read.total_bytes, rate or None, left
    if log is not None and log.shards_total and log.shards_done:
        share = log.shards_done / log.shards_total
        left = elapsed_s * (1 - share) / share
        total = read.total_bytes if read is not None else None
        done = round(total * share) if total is not None else None
        return done, total, None, left
    total = read.total_bytes if read is not None else None
    return (0 if total is not None else None), total, None, None


def _words(
    phase: Phase,
    elapsed: float,
    expected: float | None,
    source: str,
    done: int | None,
    total: int | None,
    rate: float | None,
    left: float | None,
) -> str:
    text = f"{_DOING.get(phase, str(phase))} for {human_seconds(elapsed)}"
    if done is not None and total:
        text += f": {human_bytes(done)} of {human_bytes(total)}"
        if rate:
            text += f" at {human_bytes(rate)}/s"
    if left is not None:
        text += f", about {human_seconds(left)} left"
    elif expected is not None:
        whose = "last times" if source == "history" else "planned"
        text += f"; {whose} it took {human_seconds(expected)}"
        if whose == "planned":
            text = text.replace("planned it took", "planned were at most")
    return text
