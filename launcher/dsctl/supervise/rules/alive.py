"""Alive is progress, not `/health`: does the engine iterate while requests run?"""

from __future__ import annotations

from dsctl.model.event import Phase
from dsctl.model.sample import Action, Advice, Level, Sample, Verdict, Window
from dsctl.progress import human_seconds
from dsctl.supervise.rules.context import Context
from dsctl.supervise.rules.progress import spin_hang

_SERVING = (Phase.READY, Phase.STALLED)
#: Names of vLLM's processes behind the API server, as the kernel cuts them (15 characters).
_CORES = ("VLLM::EngineCor", "VLLM::Worker")
#: Acceptance is that of the last minutes; its baseline learns so little at each look (every 5 s)
#: that it takes half an hour to follow by half: a slide must not drag it along.
_ACCEPTANCE_S = 180.0
_LEARN = 0.002


def alive(window: Window, context: Context) -> Verdict | None:
    """The worst that the newest samples of a serving engine show; None: it is well."""
    last = window.last
    if last is None or last.phase not in _SERVING or not last.alive:
        return None
    return _dead_core(window) or _stalled(window, context) or _silent(window, context)


def recovered(window: Window) -> bool:
    """Whether an engine that was called stalled moves again (or has nothing to do)."""
    if len(window.samples) < 2:
        return False
    before, now = window.samples[-2].metrics, window.samples[-1].metrics
    if before is None or now is None:
        return False
    return now.running == 0 or (now.iterations or 0) > (before.iterations or 0)


def _dead_core(window: Window) -> Verdict | None:
    """The API answers, but the processes that compute are gone."""
    last = window.samples[-1]
    recent = [s for s in window.samples if s.processes][-2:]
    if len(recent) < 2 or last.http_ok is not True:
        return None
    ever = _cores_of_all(window.samples)
    lost = [name for name in ever if all(_living(s, name) < ever[name] for s in recent)]
    if not lost:
        return None
    return Verdict(
        rule="alive",
        level=Level.ACT,
        summary=f"the API answers but {', '.join(_full(n) for n in lost)} is gone: the engine is "
        "dead behind a healthy server",
        cause="engine.dead-behind-healthy-api",
        advice=Advice(
            action=Action.RESTART,
            why="an engine core does not come back by itself",
            remedy="`dsctl restart`; `dsctl diagnose` tells what killed it",
        ),
    )


def _cores_of_all(samples: tuple[Sample, ...]) -> dict[str, int]:
    """The most processes of each kind that were seen living at once."""
    most: dict[str, int] = {}
    for sample in samples:
        for name in _CORES:
            most[name] = max(most.get(name, 0), _living(sample, name))
    return {name: count for name, count in most.items() if count}


def _living(sample: Sample, name: str) -> int:
    return sum(p.name.startswith(name) and p.state not in "ZX" for p in sample.processes or ())


def _full(name: str) -> str:
    return "VLLM::EngineCore" if name.startswith("VLLM::Eng") else name


def _stalled(window: Window, context: Context) -> Verdict | None:
    grace = context.limits.stall_grace_s
    span = window.recent(grace)
    read = [s for s in span.samples if s.metrics is not None]
    if len(read) < 3 or read[-1].t - read[0].t < 0.8 * grace:
        return None
    counts = {s.metrics.iterations for s in read if s.metrics is not None}
    busy = all(s.metrics is not None and s.metrics.running > 0 for s in read)
    if not busy or len(counts) > 1 or None in counts:
        return None
    metrics = read[-1].metrics
    assert metrics is not None
    spinning = spin_hang(window, context)
    frozen = human_seconds(read[-1].t - read[0].t)
    summary = (
        f"stalled: {metrics.running:.0f} running and {metrics.waiting:.0f} waiting requests, and "
        f"not one iteration for {frozen}"
    )
    return Verdict(
        rule="alive",
        level=Level.ACT,
        summary=f"{summary}; {spinning.summary}" if spinning is not None else summary,
        numbers={"running": metrics.running, "waiting": metrics.waiting, "grace_s": grace},
        cause=spinning.cause if spinning is not None else "engine.stalled",
        advice=Advice(
            action=Action.RESTART,
            why="requests run and nothing is computed",
            remedy=spinning.advice.remedy
            if spinning is not None and spinning.advice is not None
            else "`dsctl restart`; keep the evidence first with `dsctl bundle`",
        ),
    )


def _silent(window: Window, context: Context) -> Verdict | None:
    """Its process lives but its API has not answered for the whole grace."""
    grace = context.limits.stall_grace_s
    span = window.recent(grace)
    if len(span.samples) < 3 or span.span_s < 0.8 * grace:
        return None
    if any(s.http_ok is not False for s in span.samples):
        return None
    return Verdict(
        rule="alive",
        level=Level.ACT,
        summary=f"its process lives but its API has not answered for {human_seconds(span.span_s)}",
        numbers={"grace_s": grace},
        cause="engine.stalled",
        advice=Advice(
            action=Action.RESTART,
            why="nobody can be served",
            remedy="`dsctl restart`; keep the evidence first with `dsctl bundle`",
        ),
    )


def acceptance(window: Window, least_drafts: float) -> float | None:
    """Share of draft tokens accepted over the window; None with too few drafts to tell."""
    read = [s.metrics for s in window.samples if s.metrics is not None]
    if len(read) < 2:
        return None
    a, b = read[0], read[-1]
    if a.drafts is None or b.drafts is None or b.drafts - a.drafts < least_drafts:
        return None
    drafted = (b.draft_tokens or 0.0) - (a.draft_tokens or 0.0)
    accepted = (b.accepted_tokens or 0.0) - (a.accepted_tokens or 0.0)
    return accepted / drafted if drafted > 0 else None


def _acceptance_now(window: Window, context: Context) -> float | None:
    return acceptance(window.recent(_ACCEPTANCE_S), context.limits.acceptance_least_drafts)


def learn(baseline: float | None, window: Window, context: Context) -> float | None:
    """The baseline after this window. A collapse is not learned: it would become normal."""
    now = _acceptance_now(window, context)
    if now is None or baseline is None:
        return baseline if now is None else now
    if now < context.limits.acceptance_share * baseline:
        return baseline
    return (1 - _LEARN) * baseline + _LEARN * now


def acceptance_collapse(window: Window, context: Context) -> Verdict | None:
    """Drafts are accepted far less than this deployment's own baseline."""
    now = _acceptance_now(window, context)
    baseline = context.acceptance
    if now is None or not baseline or now >= context.limits.acceptance_share * baseline:
        return None
    return Verdict(
        rule="acceptance",
        level=Level.WARN,
        summary=f"draft acceptance fell to {now:.0%}; this deployment's own baseline is "
        f"{baseline:.0%}: answers stay right but become slow, or the text is unusual",
        numbers={"acceptance": now, "baseline": baseline},
        advice=Advice(
            action=Action.WAIT,
            why="unusual text accepts few drafts",
            remedy="if it stays: `dsctl restart`, and `dsctl bench run` before and after",
        ),
    )
