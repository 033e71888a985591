"""The outside world, injected: clocks and sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shell:
    """`now` is Unix time and may jump; `clock` counts seconds and never does; `wait` sleeps."""

    now: Callable[[], float]
    clock: Callable[[], float]
    wait: Callable[[float], None]


def real_shell() -> Shell:
    """The clocks of this machine."""
    return Shell(now=time.time, clock=time.monotonic, wait=time.sleep)
