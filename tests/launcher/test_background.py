"""Background work pauses while it is wished, goes on by itself, and is seen only while it lives."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from dsctl.background import PAUSE_S, Background
from dsctl.engine.identity import identify
from dsctl.engine.pack import run_pack
from dsctl.model.event import Event, Phase
from dsctl.model.sample import Action, Advice, Level, Verdict
from dsctl.progress import Progress
from dsctl.supervise.journal import Journal
from dsctl.supervise.observer import Observer
from dsctl.supervise.rules.context import Context

COUNTS = """
import sys, time
for n in range(40):
    print("line", n, file=sys.stderr, flush=True)
    time.sleep(0.1)
print("{}")
"""


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_wish_holds_for_some_seconds(tmp_path: Path) -> None:
    clock = [1000.0]
    background = Background(tmp_path / "b", now=lambda: clock[0])
    assert not background.asked_to_pause()
    background.ask_to_pause()
    assert background.asked_to_pause()
    clock[0] += PAUSE_S
    assert not background.asked_to_pause()
    clock[0] -= 2 * PAUSE_S  # a clock that was set back holds nobody up
    assert not background.asked_to_pause()


def test_a_process_that_ended_works_no_more(tmp_path: Path) -> None:
    background = Background(tmp_path)
    (tmp_path / "1.json").write_text("half a fi")
    assert not background.works()
    (tmp_path / "1.json").write_text('{"pid": 1, "start_ticks": 1, "boot_id": "another"}')
    assert not background.works()


def test_the_supervisor_asks_where_a_verdict_advises_it(tmp_path: Path) -> None:
    background = Background(tmp_path / "b")
    events: list[Event] = []
    observer = Observer(
        eyes=None,  # type: ignore[arg-type]  # it does not look here
        alive=lambda: True,
        context=Context(phase_began=0.0),
        journal=Journal(events.append, time.time),
        file=tmp_path / "samples",
        background=background,
    )
    advice = Advice(action=Action.PAUSE_BACKGROUND, why="thrash")
    observer.verdicts = (Verdict(rule="thrash", level=Level.WARN, summary="x", advice=advice),)
    observer.tell(Phase.READY)
    assert not background.asked_to_pause(), "nobody works"
    me = identify(os.getpid()).model_dump_json()
    background.directory.mkdir()
    (background.directory / "1.json").write_text(me)
    observer.tell(Phase.READY)
    observer.tell(Phase.READY)
    assert background.asked_to_pause()
    assert [e.event for e in events].count("background-paused") == 1


def test_a_build_stops_when_asked_and_goes_on_by_itself(tmp_path: Path) -> None:
    clock = [time.time()]
    background = Background(tmp_path / "b", now=lambda: clock[0])
    said: list[Progress] = []
    command = [sys.executable, "-c", COUNTS]
    work = threading.Thread(
        target=lambda: run_pack(command, "", [], said.append, background), daemon=True
    )
    work.start()
    until(background.works)
    me = psutil.Process()

    def states() -> list[str]:
        found = []
        for child in me.children():
            try:
                if child.cmdline()[:2] == command[:2]:
                    found.append(child.status())
            except psutil.Error:
                continue
        return found

    until(lambda: states() != [])
    background.ask_to_pause()
    until(lambda: states() == [psutil.STATUS_STOPPED])
    assert [p.what for p in said] == ["paused: the engine needs the memory; goes on by itself"]
    time.sleep(1.5)
    assert states() == [psutil.STATUS_STOPPED], "as long as the wish holds"
    clock[0] += PAUSE_S
    work.join(timeout=30)
    assert not work.is_alive(), "it went on and ended"
    assert not background.works()
