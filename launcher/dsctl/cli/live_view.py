"""The live view: phases with times, memory against the plan, rates, the log at a key."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dsctl.cli.live_state import START, LiveState
from dsctl.model.event import Event, Phase
from dsctl.progress import human_bytes, human_seconds

if TYPE_CHECKING:
    from dsctl.engine.state import StateDirectory

_REFRESH_S = 0.5
_BAR = 24
_LOG_LINES = 12
_QUIET = ("ready", "already-up", "failed", "interrupted")


@contextmanager
def live_view(state: StateDirectory) -> Iterator[Callable[[Event], None]]:
    """A watcher that keeps the view at the foot of the terminal; what matters scrolls above."""
    known = LiveState(state.samples_file, state.log_file)
    console = Console(stderr=True)
    stop = threading.Event()
    live = Live(console=console, auto_refresh=False, transient=True)

    def watch(event: Event) -> None:
        known.take(event)
        text = worth_keeping(event, known)
        if text is not None:
            live.console.print(text)

    def refresh() -> None:
        while not stop.wait(_REFRESH_S):
            known.read()
            live.update(render(known, time.time()), refresh=True)

    drawer = threading.Thread(target=refresh, name="live view", daemon=True)
    with live, _keys(known, stop):
        drawer.start()
        try:
            yield watch
        finally:
            stop.set()
            drawer.join(timeout=2.0)
            live.update(Text(""), refresh=True)
    if Phase.WARMING in known.phases:
        ended = known.phases.get(Phase.READY, time.time())
        console.print(phases_table(known, ended, whole=True))


def worth_keeping(event: Event, known: LiveState) -> Text | None:
    """The line that stays above the view: warnings, failures, changes; not the steps of a start."""
    level = event.extra("level")
    finding = event.event.startswith("finding-")
    if event.event in _QUIET or not event.message:
        return None
    if not (
        finding
        or level
        or event.event
        in (
            "retry",
            "died",
            "stalled",
            "recovered",
            "rebooted",
            "chosen",
            "joined",
            "adopted",
            "gives-up",
        )
    ):
        return None
    bad = event.event in ("died", "finding-fail") or level == "act"
    text = Text(f"{event.t - (known.began or event.t):7.1f} s  ", style="dim")
    text.append(event.message, style="red" if bad else "yellow" if finding or level else "")
    remedy = event.extra("remedy")
    return text.append(f"\n{'':11}what to do: {remedy}", style="dim") if remedy else text


def render(known: LiveState, now: float) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [phases_table(known, now)]
    for part in (_progress(known), _memory(known), _serving(known)):
        if part is not None:
            parts.append(part)
    if known.show_log:
        lines = list(known.lines)[-_LOG_LINES:]
        parts.append(
            Text("\n".join(lines) or "(no log yet)", style="dim", overflow="ellipsis", no_wrap=True)
        )
    parts.append(Text(f"l: {'hide' if known.show_log else 'show'} the log", style="dim"))
    return Group(*parts)


def phases_table(known: LiveState, now: float, *, whole: bool = False) -> Table:
    """One row a phase: a mark, its name, the time it took, what it said last.

    `whole`: every phase that the start has gone through, once it is over.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(width=1)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="ellipsis", no_wrap=True)
    shown: tuple[Phase, ...] = START if known.phase in START else (known.phase,)
    if whole:
        shown = tuple(phase for phase in (*START, Phase.READY) if phase in known.phases)
    for phase in shown:
        took = known.took_s(phase, now)
        if phase is known.phase:
            mark, style = "▸", "bold"
        elif took is not None:
            mark, style = "✓", "green"
        else:
            mark, style = "·", "dim"
        time_ = human_seconds(took) if took is not None else ""
        table.add_row(mark, phase.value, time_, known.said.get(phase, ""), style=style)
    return table


def _progress(known: LiveState) -> RenderableType | None:
    event = known.progress
    if event is None:
        return None
    done, total = event.extra("done"), event.extra("total")
    row = Table.grid(padding=(0, 2))
    if total:
        row.add_row(
            ProgressBar(total=float(total), completed=float(done or 0), width=_BAR), event.message
        )
        return row
    return Text(event.message)


def _memory(known: LiveState) -> RenderableType | None:
    """What is in use against what was planned: the engine on the host, then each GPU."""
    sample, plan = known.sample, known.plan
    if sample is None:
        return None
    rows = []
    resident = sample.sum("resident_bytes")
    planned = (plan or {}).get("host", {}).get("load_peak_bytes")
    if resident is not None and planned:
        rows.append(("host", resident, planned))
    for gpu in sample.gpus or ():
        budget = _planned_gpu(plan, gpu.index)
        if gpu.memory_used_bytes is not None and budget:
            rows.append((f"GPU {gpu.index}", gpu.memory_used_bytes, budget))
    table = Table.grid(padding=(0, 2))
    for name, used, budget in rows:
        bar = ProgressBar(total=float(budget), completed=float(min(used, budget)), width=_BAR)
        table.add_row(
            name, bar, f"{human_bytes(used)} of {human_bytes(budget)} planned at the peak"
        )
    if sample.host is not None:
        free = human_bytes(sample.host.available_bytes)
        table.add_row("left", "", f"{free} of the host's memory available")
    return table


def _planned_gpu(plan: dict[str, Any] | None, index: int) -> int | None:
    for gpu in (plan or {}).get("gpus", ()):
        if gpu["index"] == index:
            return int(gpu["load_peak_bytes"])
    return None


def _serving(known: LiveState) -> RenderableType | None:
    metrics = known.sample.metrics if known.sample is not None else None
    if metrics is None or known.phase in START:
        return None
    text = f"{metrics.running:.0f} running, {metrics.waiting:.0f} waiting"
    for name, what in (("generation_tokens", "generated"), ("prompt_tokens", "read")):
        rate = known.rate(name)
        if rate is not None:
            text += f", {rate:.1f} tok/s {what}"
    if metrics.kv_usage is not None:
        text += f", KV cache {100 * metrics.kv_usage:.0f} % full"
    return Text(text)


@contextmanager
def _keys(known: LiveState, stop: threading.Event) -> Iterator[None]:
    """Keys while the view is up; the terminal is set back whatever happens."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def listen() -> None:
        while not stop.is_set():
            ready, _, _ = select.select([descriptor], [], [], 0.2)
            if ready and os.read(descriptor, 1) == b"l":
                known.show_log = not known.show_log

    tty.setcbreak(descriptor)
    listener = threading.Thread(target=listen, name="keys", daemon=True)
    listener.start()
    try:
        yield
    finally:
        stop.set()
        listener.join(timeout=1.0)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
