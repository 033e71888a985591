"""Slow or stuck: told by what moves, never by one message and never by the clock alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from dsctl.cli.app import build_app
from dsctl.model.event import Phase
from dsctl.model.sample import Action, Level, Verdict, Window
from dsctl.supervise.rules import Context, assess
from dsctl.supervise.rules.progress import progress
from tests.support.samples import (
    GIB,
    card,
    checkpoint,
    log,
    metrics,
    plan,
    process,
    spinning,
    window,
)

BEGAN = Context(phase_began=1000.0, plan=plan())
PAIR = {"gpus": (spinning(0), spinning(1))}


def judged(seconds: float, parts: Any, phase: Phase = Phase.LOADING) -> Verdict | None:
    return progress(window(seconds, parts, phase=phase), BEGAN)


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        (Phase.STARTING, "comm.p2p-hang"),
        (Phase.LOADING, "comm.p2p-hang"),
        (Phase.ALLOCATING, "comm.allreduce-spin"),
        (Phase.COMPILING, "comm.allreduce-spin"),
        (Phase.WARMING, "comm.allreduce-spin"),
    ],
)
def test_two_cards_busy_at_idle_power_without_a_line_hang_in_a_collective(
    phase: Phase, cause: str
) -> None:
    found = judged(80, lambda t: PAIR, phase)
    assert found is not None
    assert (found.cause, found.level) == (cause, Level.ACT)
    assert found.advice is not None
    assert found.advice.action is Action.CONTROL_ARM
    assert (found.advice.knob, found.advice.value) == ("peer_to_peer", "off")
    assert "GPUs 0, 1" in found.summary
    assert "92 W" in found.summary


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("one card works", lambda t: {"gpus": (spinning(0), card(1))}),
        ("they draw power", lambda t: {"gpus": (spinning(0, power_w=400.0), spinning(1))}),
        ("it was not so all along", lambda t: PAIR if t > 40 else {"gpus": (card(0), card(1))}),
        ("the log goes on", lambda t: PAIR | {"log": log(news_at=1000.0 + t)}),
        (
            "the engine iterates",
            lambda t: PAIR | {"metrics": metrics(running=1.0, iterations=t)},
        ),
        ("a card does not tell its power", lambda t: {"gpus": (spinning(0, power_w=None),)}),
        ("nobody reads the log", lambda t: PAIR | {"log": None}),
        ("it has no card", lambda t: {}),
    ],
)
def test_it_is_no_collective_when(what: str, parts: Any) -> None:
    found = judged(80, parts)
    assert found is None or found.cause not in ("comm.p2p-hang", "comm.allreduce-spin"), what


@pytest.mark.parametrize(
    ("limit_w", "power_w", "spins"),
    [
        (600.0, 92.0, True),
        (600.0, 140.0, True),
        (600.0, 200.0, False),
        (300.0, 92.0, True),
        (250.0, 98.0, True),
        (300.0, 190.0, False),
        (None, 92.0, True),
    ],
)
def test_idle_power_is_a_quarter_of_the_limit_or_a_hundred_watts(
    limit_w: float | None, power_w: float, spins: bool
) -> None:
    pair = tuple(spinning(i, power_w=power_w, power_limit_w=limit_w) for i in (0, 1))
    found = judged(80, lambda t: {"gpus": pair})
    assert (found is not None and found.cause == "comm.p2p-hang") is spins


def test_a_single_card_has_nobody_to_wait_for() -> None:
    found = judged(80, lambda t: {"gpus": (spinning(0),)})
    assert found is not None
    assert found.cause == "engine.stalled"
    assert found.advice is not None
    assert found.advice.action is Action.STOP


def test_with_peer_access_off_already_no_control_arm_is_offered() -> None:
    off = Context(phase_began=1000.0, plan=plan(), peer_to_peer=False)
    found = progress(window(80, lambda t: PAIR), off)
    assert found is not None
    assert found.advice is not None
    assert found.advice.action is Action.STOP


@pytest.mark.parametrize(
    ("moves", "parts"),
    [
        ("bytes", lambda t: {"checkpoint": checkpoint(t * 1e8)}),
        ("disk", lambda t: {"processes": (process(read_bytes=int(t * 1e6)),)}),
        ("CPU", lambda t: {"processes": (process(cpu_s=t * 0.9),)}),
        ("memory", lambda t: {"processes": (process(anonymous_bytes=int(t * 1e7)),)}),
        ("the card's memory", lambda t: {"gpus": (card(memory_used_bytes=int(t * 1e8)),)}),
        ("the log", lambda t: {"log": log(news_at=1000.0 + t)}),
    ],
)
def test_whatever_moves_it_is_not_stuck(moves: str, parts: Any) -> None:
    found = judged(240, parts)
    assert found is not None, "240 s are longer than the 60 s that the plan gives the load"
    assert found.level is Level.TELL, moves
    assert "slow, not stuck" in found.summary
    assert found.advice is not None
    assert found.advice.action is Action.WAIT


def test_nothing_at_all_moving_for_two_minutes_is_stuck() -> None:
    found = judged(130, lambda t: {})
    assert found is not None
    assert (found.cause, found.level) == ("engine.stalled", Level.ACT)
    assert "stuck while loading" in found.summary


@pytest.mark.parametrize(
    ("state", "word"), [("D", "waits in the kernel"), ("T", "stopped"), ("S", "nothing of it")]
)
def test_how_it_is_stuck_is_said(state: str, word: str) -> None:
    found = judged(130, lambda t: {"processes": (process(state=state),)})
    assert found is not None
    assert word in found.summary


def test_before_two_minutes_nothing_is_called_stuck() -> None:
    found = judged(80, lambda t: {})
    assert found is None or found.level is not Level.ACT


@pytest.mark.parametrize("parts", [{"processes": None}, {"log": None}])
def test_whoever_sees_nothing_does_not_call_it_stuck(parts: dict[str, Any]) -> None:
    found = judged(300, lambda t: parts)
    assert found is None or found.level is not Level.ACT


def test_a_start_within_its_time_has_no_verdict() -> None:
    assert judged(50, lambda t: {"checkpoint": checkpoint(t * 1e9)}) is None


def test_a_process_that_began_in_the_window_counts_from_its_birth() -> None:
    def parts(t: float) -> dict[str, Any]:
        born = (process(), process(pid=11, cpu_s=t * 0.8)) if t > 30 else (process(),)
        return {"processes": born}

    found = judged(130, parts)
    assert found is not None
    assert found.level is Level.TELL


RULE_PARTS = st.fixed_dictionaries(
    {
        "moving": st.booleans(),
        "cpu": st.sampled_from([0.0, 0.9]),
        "spin": st.booleans(),
        "seconds": st.sampled_from([20, 80, 130, 250]),
    }
)


@given(case=RULE_PARTS, waits=st.integers(0, 500))
def test_the_waiting_message_alone_decides_nothing(case: dict[str, Any], waits: int) -> None:
    """Law: how often "No available shared memory broadcast block" was written changes nothing."""

    def told(count: int) -> Window:
        def parts(t: float) -> dict[str, Any]:
            found: dict[str, Any] = {
                "log": log(waits=round(count * t / 250), line_at=1000.0 + t),
                "processes": (process(cpu_s=case["cpu"] * t),),
            }
            if case["moving"]:
                found["checkpoint"] = checkpoint(t * 1e8)
            if case["spin"]:
                found |= PAIR
            return found

        return window(case["seconds"], parts, every_s=5.0)

    quiet = [(v.rule, v.level, v.cause) for v in assess(told(0), BEGAN)]
    assert [(v.rule, v.level, v.cause) for v in assess(told(waits), BEGAN)] == quiet


def test_gravest_first() -> None:
    thrashing = window(200, lambda t: PAIR | {"checkpoint": checkpoint(0, 10 * GIB)})
    levels = [v.level for v in assess(thrashing, BEGAN)]
    assert levels == sorted(levels, key=[Level.ACT, Level.WARN, Level.TELL, Level.FINE].index)


def test_every_command_that_it_names_is_one() -> None:
    root = typer.main.get_command(build_app())
    named = re.findall(r"`dsctl ([^`]+)`", Path(progress.__code__.co_filename).read_text())
    assert named
    for line in named:
        name, *rest = shlex.split(line)
        command = root.commands[name]  # type: ignore[attr-defined]
        command.make_context(name, rest)
