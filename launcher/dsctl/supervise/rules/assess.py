"""Every rule that watches, in one call."""

from __future__ import annotations

from collections.abc import Callable

from dsctl.model.sample import Level, Verdict, Window
from dsctl.supervise.rules.alive import acceptance_collapse, alive
from dsctl.supervise.rules.context import Context
from dsctl.supervise.rules.hardware import driver_silent, heat, xids
from dsctl.supervise.rules.memory import gpu_peak, host_peak
from dsctl.supervise.rules.pressure import oom_kills, thrash
from dsctl.supervise.rules.progress import progress

Rule = Callable[[Window, Context], Verdict | None]

#: Of two that ask for action the earlier one wins: hardware before memory before waiting.
RULES: tuple[Rule, ...] = (
    xids,
    thrash,
    host_peak,
    gpu_peak,
    oom_kills,
    progress,
    alive,
    acceptance_collapse,
    heat,
    driver_silent,
)
_GRAVITY = {Level.ACT: 0, Level.WARN: 1, Level.TELL: 2, Level.FINE: 3}


def assess(window: Window, context: Context) -> tuple[Verdict, ...]:
    """What the rules say about the window, the gravest first; empty: all is well."""
    found = [verdict for rule in RULES if (verdict := rule(window, context)) is not None]
    return tuple(sorted(found, key=lambda verdict: _GRAVITY[verdict.level]))
