"""Ctrl-C, a closed terminal and a polite kill all cancel in the same clean way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dsctl.errors import InterruptedByUserError


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a start as Ctrl-C does: cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedByUserError("interrupted; nothing was left running") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_depth = 0


@contextmanager
def uninterrupted(*, raise_after: bool = False) -> Iterator[None]:
    """Taking down goes on to its end, however often somebody presses Ctrl-C.

    With `raise_after` what came meanwhile interrupts at the end; without, it is forgotten. Inside
    another one the outer one decides.
    """
    global _depth
    came: list[int] = []
    before = {} if _depth else {n: signal.signal(n, lambda n, f: came.append(n)) for n in _NUMBERS}
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        for number, handler in before.items():
            signal.signal(number, handler)
    if came and raise_after:
        raise KeyboardInterrupt
