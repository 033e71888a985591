"""Slow or stuck? A start is judged by what moves, never by one message and never by the clock."""

from __future__ import annotations

from dsctl.model.event import Phase
from dsctl.model.sample import Action, Advice, GpuSample, Level, Sample, Verdict, Window
from dsctl.progress import human_seconds
from dsctl.supervise.rules.context import STARTING, Context
from dsctl.supervise.rules.phases import outlook
from dsctl.supervise.rules.signs import Signs, idle_power_w, signs, spins

_RULE = "progress"
#: Phases in which the first collective of the communicator runs; later ones use vLLM's own.
_BEFORE_WEIGHTS = (Phase.STARTING, Phase.LOADING)
#: So much longer than expected is worth a line.
_LATE = 1.5


def progress(window: Window, context: Context) -> Verdict | None:
    """The verdict on a start at the newest sample; None while there is nothing to say."""
    last = window.last
    if last is None or last.phase not in STARTING or not last.alive:
        return None
    spinning = spin_hang(window, context)
    if spinning is not None:
        return spinning
    seen = signs(window, context.limits.stuck_s)
    if seen is None or seen.blind:
        return _late(window, context, [])
    moving = seen.moving
    if not moving and not seen.works:
        return _stuck(last, seen)
    if not moving and seen.works:
        moving = [f"its processes compute ({seen.cores:.1f} cores in use)"]
    return _late(window, context, moving)


def spin_hang(window: Window, context: Context) -> Verdict | None:
    """A collective that waits for ever: every card busy without work, no line, no iteration."""
    limits = context.limits
    last = window.last
    cards = spins(window, limits.spin_s, limits)
    if last is None or not cards or last.log is None:
        return None
    span = window.recent(limits.spin_s)
    news = last.log.news_at
    if news is not None and news > span.samples[0].t:
        return None
    if any(s.metrics is not None for s in span.samples) and _iterations_moved(span):
        return None
    since = last.t - news if news is not None else span.span_s
    drawn = max(card.power_w or 0.0 for card in cards)
    most = max(idle_power_w(card, limits) for card in cards)
    cause, what = _collective(last.phase, cards)
    summary = (
        f"{what}: {_cards(cards)} at 95 % or more with at most {drawn:.0f} W (work draws far more "
        f"than {most:.0f} W), and no log line or iteration for {human_seconds(since)}"
    )
    return Verdict(
        rule=_RULE,
        level=Level.ACT,
        summary=summary,
        numbers={
            "power_w": drawn,
            "idle_power_below_w": most,
            "silent_s": since,
            "gpus": float(len(cards)),
            "waits": float(last.log.waits),
        },
        cause=cause,
        advice=_control_arm(cards, context),
    )


def _collective(phase: Phase, cards: tuple[GpuSample, ...]) -> tuple[str, str]:
    if len(cards) == 1:
        return "engine.stalled", "the card spins without working"
    if phase in _BEFORE_WEIGHTS:
        return "comm.p2p-hang", "the cards wait for each other in their first collective (P2P)"
    return "comm.allreduce-spin", "the cards wait for each other in an all-reduce (P2P)"


def _control_arm(cards: tuple[GpuSample, ...], context: Context) -> Advice:
    if len(cards) == 1 or context.peer_to_peer is False:
        return Advice(
            action=Action.STOP,
            why="one card has nobody to wait for" if len(cards) == 1 else "peer access is off",
            remedy="see `dsctl logs` for the last step, and report it with `dsctl bundle`",
        )
    return Advice(
        action=Action.CONTROL_ARM,
        why="with peer access off the same all-reduce goes through host memory: if that works, "
        "the path between the cards is what fails",
        remedy="`dsctl preflight --prove-p2p`, or start with `--set peer_to_peer=off`",
        knob="peer_to_peer",
        value="off",
    )


def _cards(cards: tuple[GpuSample, ...]) -> str:
    names = ", ".join(str(card.index) for card in cards)
    return f"GPU {names}" if len(cards) == 1 else f"GPUs {names}"


def _iterations_moved(window: Window) -> bool:
    values = {
        s.metrics.iterations
        for s in window.samples
        if s.metrics is not None and s.metrics.iterations is not None
    }
    return len(values) > 1


def _stuck(last: Sample, seen: Signs) -> Verdict:
    span = human_seconds(seen.span_s)
    cores = seen.cores or 0.0
    why, remedy = "nothing of it moves", "see `dsctl logs`; `dsctl bundle` keeps the evidence"
    if set(seen.states) & {"T", "t"} and not set(seen.states) - {"T", "t", "Z"}:
        why, remedy = "its processes are stopped", "continue them (`kill -CONT PID`)"
    elif "D" in seen.states:
        why = "it waits in the kernel, for a disk or a driver"
        remedy = "look at the disk and at `dmesg`; a dying disk or driver shows there"
    return Verdict(
        rule=_RULE,
        level=Level.ACT,
        summary=f"stuck while {last.phase}: {why} for {span} (no bytes read, {cores:.2f} cores, "
        "no new log line, memory unchanged)",
        numbers={"span_s": seen.span_s, "cores": cores},
        cause="engine.stalled",
        advice=Advice(action=Action.STOP, why=why, remedy=remedy),
    )


def _late(window: Window, context: Context, moving: list[str]) -> Verdict | None:
    """It moves: say that it is slow once it takes longer than expected, and give it time."""
    view = outlook(window, context)
    if view is None or view.expected_s is None or view.elapsed_s <= _LATE * view.expected_s:
        return None
    how = "; ".join(moving) if moving else "too little is known yet to call it stuck"
    return Verdict(
        rule=_RULE,
        level=Level.TELL,
        summary=f"slow, not stuck: {view.phase} for {human_seconds(view.elapsed_s)} "
        f"({human_seconds(view.expected_s)} expected): {how}"
        if moving
        else f"{view.phase} for {human_seconds(view.elapsed_s)} "
        f"({human_seconds(view.expected_s)} expected): {how}",
        numbers={"elapsed_s": view.elapsed_s, "expected_s": view.expected_s},
        cause="engine.slow-load" if view.phase is Phase.LOADING and moving else None,
        advice=Advice(action=Action.WAIT, why=how) if moving else None,
    )
