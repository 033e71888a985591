"""Memory pressure as it is: thrashing, and kills for lack of memory.

Thrashing is told by stall times (PSI) together with what comes back from disk, never by free
memory: a healthy machine has none.
"""

from __future__ import annotations

from dsctl.model.sample import Action, Advice, Level, Verdict, Window
from dsctl.progress import human_seconds
from dsctl.supervise.rules.context import STARTING, Context

#: A kill is told while it is that young, and once.
_KILL_IS_NEWS_S = 30.0
#: Share of the machine's memory below which the kernel's reserves are all that is left.
_NOTHING_LEFT = 0.03


def thrash(window: Window, context: Context) -> Verdict | None:
    """Swapping (or mapped weights read over and over) that eats the time of every task."""
    limits = context.limits
    span = window.recent(limits.thrash_s)
    hosts = [s.host for s in span.samples if s.host is not None]
    if len(hosts) < 3 or span.span_s < 0.8 * limits.thrash_s:
        return None
    swapped = span.rate(lambda s: s.host.swapped_in_bytes if s.host is not None else None) or 0.0
    faults = span.rate(lambda s: s.host.major_faults if s.host is not None else None) or 0.0
    # A major fault brings in one page at least.
    back = max(swapped, faults * 4096)
    stalls = [h.memory_stall.full for h in hosts if h.memory_stall is not None]
    stalled = min(stalls) if stalls else None
    if back < limits.thrash_bytes_s:
        return None
    if stalled is None:  # a kernel without PSI: what comes in must also go out, fast
        out = span.rate(lambda s: s.host.swapped_out_bytes if s.host is not None else None) or 0.0
        if min(swapped, out) < 5 * limits.thrash_bytes_s:
            return None
    elif stalled < limits.thrash_stall:
        return None
    starting = span.samples[-1].phase in STARTING
    waits = f"all tasks waited for memory {stalled:.0f} % of the time" if stalled else "no PSI here"
    what = "from swap" if swapped * 2 > back else "of file pages that were thrown out"
    return Verdict(
        rule="thrash",
        level=Level.ACT if starting else Level.WARN,
        summary=f"the machine thrashes: {waits}, {back / 1e6:.0f} MB/s come back {what}, "
        f"for {human_seconds(span.span_s)}",
        numbers={
            "stall_percent": stalled or 0.0,
            "swapped_in_bytes_s": swapped,
            "major_faults_s": faults,
        },
        cause="memory.swap-thrash",
        advice=Advice(
            action=Action.REFUSE if starting else Action.PAUSE_BACKGROUND,
            why="a load that thrashes does not end, and takes the whole machine with it",
            remedy="free host memory or take a smaller profile; more swap does not help",
        ),
    )


def oom_kills(window: Window, context: Context) -> Verdict | None:
    """Kills for lack of memory within the last moments.

    The machine's counter counts the kills in every control group. Only where the machine itself had
    next to nothing left was it the machine: elsewhere somebody's own limit was reached.
    """
    span = window.recent(_KILL_IS_NEWS_S)
    in_group = span.gain(lambda s: s.cgroup.oom_kills if s.cgroup is not None else None)
    on_host = span.gain(lambda s: s.host.oom_kills if s.host is not None else None)
    told = [e for e in span.samples[-1].container_events if e.action == "oom"] if span.last else []
    in_group = in_group or sum(event.t >= span.samples[0].t for event in told)
    if not in_group and not on_host:
        return None
    hosts = [s.host for s in span.samples if s.host is not None]
    scarce = any(h.available_bytes < _NOTHING_LEFT * h.total_bytes for h in hosts)
    kills = in_group or on_host or 0.0
    what = "a process" if kills == 1 else f"{kills:.0f} processes"
    level, cause = Level.WARN, None
    if in_group:
        where = "the limit of the engine's control group was reached"
        cause = "container.oom-killed"
    elif scarce:
        where, cause = "the machine had next to none left", "memory.host-oom-kill"
    else:
        where = "by a limit that is not the engine's; the machine itself had memory left"
        level = Level.TELL
    return Verdict(
        rule="oom-kill",
        level=level,
        summary=f"the kernel killed {what} for lack of memory: {where}",
        numbers={
            "kills": kills,
            **({"least_available_bytes": min(h.available_bytes for h in hosts)} if hosts else {}),
        },
        cause=cause,
    )
