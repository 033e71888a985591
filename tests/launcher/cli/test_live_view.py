"""The live view, drawn from events and samples as they lie on disk."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from dsctl.cli.live_state import LiveState
from dsctl.cli.live_view import phases_table, render, worth_keeping
from dsctl.model.event import Event, Phase


def event(t: float, phase: Phase, name: str, message: str = "", **extra: object) -> Event:
    return Event(t=t, phase=phase, event=name, message=message, **extra)


def drawn(known: LiveState, now: float) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(known, now))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def loading(tmp_path: Path) -> LiveState:
    known = LiveState(tmp_path / "samples.jsonl", tmp_path / "engine.log")
    plan = {"host": {"load_peak_bytes": 8 << 30}, "gpus": []}
    known.take(event(100.0, Phase.PREFLIGHT, "plan", "planned: fits", plan=plan))
    known.take(event(101.0, Phase.STARTING, "start", "starts the engine"))
    known.take(event(131.0, Phase.LOADING, "load-start", "reads /m"))
    progress = {"done": 40 << 30, "total": 160 << 30, "left_s": 240.0}
    known.take(
        event(140.0, Phase.LOADING, "outlook-progress", "reads the weights: 40 of 160", **progress)
    )
    return known


def test_phases_have_their_times_and_the_load_its_bar(tmp_path: Path) -> None:
    text = drawn(loading(tmp_path), 151.0)
    rows = {line.split()[1]: line for line in text.splitlines() if len(line.split()) > 1}
    assert "30 s" in rows["starting"]
    assert "20 s" in rows["loading"]
    assert "reads the weights: 40 of 160" in text
    assert "warming" in rows


def test_memory_is_shown_against_the_plan(tmp_path: Path) -> None:
    known = loading(tmp_path)
    sample = {
        "t": 1.0,
        "wall_t": 1.0,
        "phase": "loading",
        "processes": [{"pid": 1, "name": "w", "state": "R", "resident_bytes": 2 << 30}],
    }
    known.samples_file.write_text(json.dumps(sample) + "\n")
    known.read()
    assert "2.0 GiB of 8.0 GiB planned at the peak" in drawn(known, 150.0)


def test_the_log_is_shown_on_demand(tmp_path: Path) -> None:
    known = loading(tmp_path)
    known.log.write_text("first line\nlast line\n")
    known.read()
    assert "last line" not in drawn(known, 150.0)
    known.show_log = True
    assert "last line" in drawn(known, 150.0)


def test_a_late_progress_of_an_earlier_phase_moves_nothing_back(tmp_path: Path) -> None:
    known = loading(tmp_path)
    known.take(event(141.0, Phase.STARTING, "outlook-progress", "imports the engine"))
    assert known.phase is Phase.LOADING
    assert known.took_s(Phase.STARTING, 150.0) == 30.0


def test_a_retry_begins_the_times_anew(tmp_path: Path) -> None:
    known = loading(tmp_path)
    known.take(event(150.0, Phase.STARTING, "retry", "tries max_model_len = 2048"))
    assert known.took_s(Phase.LOADING, 160.0) is None
    assert known.took_s(Phase.STARTING, 160.0) == 10.0


def test_what_matters_later_stays_above_the_view(tmp_path: Path) -> None:
    known = loading(tmp_path)
    finding = event(150.0, Phase.PREFLIGHT, "finding-warn", "host.swap: none", remedy="add some")
    kept = worth_keeping(finding, known)
    assert kept is not None
    assert "host.swap: none" in kept.plain
    assert "what to do: add some" in kept.plain
    assert worth_keeping(event(150.0, Phase.LOADING, "load-start", "reads"), known) is None
    assert phases_table(known, 150.0, whole=True).row_count == 3
