"""What a CPU cannot show: hour-long loads, swapping hosts, spinning cards, clocks that jump.

Each start runs on an injected clock against scripted samples, through the real watch, observer,
rules and evidence.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsctl.errors import EngineError, TimedOutError
from dsctl.model.event import Phase
from dsctl.model.sample import (
    CheckpointSample,
    GpuSample,
    HostSample,
    LogSample,
    ProcessSample,
    Sample,
    Stall,
)
from dsctl.supervise.evidence import newest
from dsctl.supervise.readiness import NotYet, Right
from tests.support.engine.world import LOG, World

GIB = 1 << 30


def host(t: float, *, swapped_in: int = 0, stall: float = 0.0) -> HostSample:
    return HostSample(
        total_bytes=256 * GIB,
        available_bytes=100 * GIB,
        free_bytes=50 * GIB,
        swapped_in_bytes=swapped_in,
        swapped_out_bytes=swapped_in,
        major_faults=0,
        oom_kills=0,
        memory_stall=Stall(some=stall, full=stall),
    )


def test_an_hour_long_load_that_moves_is_waited_for_with_what_is_left(tmp_path: Path) -> None:
    """160 GB at 44 MB/s: no verdict against it, a progress with bytes and time left, then ready."""
    total = 160 * 10**9

    def eyes(t: float, phase: Phase) -> Sample:
        read = min(total, int(44e6 * (t - 1000.0)))
        return Sample(
            t=t,
            wall_t=t,
            phase=phase,
            host=host(t),
            checkpoint=CheckpointSample(total_bytes=total, read_bytes=read, how="counted"),
            log=LogSample(lines=3, size_bytes=300, news_at=1003.0),
            processes=(ProcessSample(pid=1, name="VLLM::Worker", state="D", cpu_s=t / 100),),
        )

    lines = [*LOG[:2], *[""] * 183, *LOG[2:]]
    outcomes = [*[NotYet()] * 184, Right({})]
    world = World(tmp_path, lines, outcomes, eyes=eyes, tick_s=20.0, timeout_s=7200.0)
    assert world.run().phase is Phase.READY
    told = [e for e in world.events if e.event == "outlook-progress" and e.phase is Phase.LOADING]
    assert len(told) > 100
    middle = told[len(told) // 2]
    assert 0 < middle.extra("done") < middle.extra("total")
    assert 1000 < middle.extra("left_s") < 3000
    assert not [e for e in world.events if e.extra("level") == "act"]


def test_a_host_that_thrashes_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """memory.swap-thrash; the engine is taken down at once, evidence with the timeline kept."""

    def eyes(t: float, phase: Phase) -> Sample:
        swapped = int(2e8 * (t - 1000.0))
        return Sample(t=t, wall_t=t, phase=phase, host=host(t, swapped_in=swapped, stall=45.0))

    world = World(tmp_path, lines=LOG[:2], eyes=eyes, outcomes=[NotYet()], timeout_s=600.0)
    with pytest.raises(EngineError, match="thrashes") as caught:
        world.run()
    assert caught.value.cause == "memory.swap-thrash"
    assert world.engine.stopped
    assert world.engine.ticks < 60, "long before the deadline"
    kept = newest(world.state)
    assert kept is not None
    assert len(kept.samples) > 10
    assert kept.samples[-1]["host"]["memory_stall"]["full"] == 45.0


def test_cards_that_spin_without_work_are_a_hang_and_not_a_slow_load(tmp_path: Path) -> None:
    """Both at 100 % and idle power, no line for a minute: named, taken down; the control arm is
    for `what next`."""

    def eyes(t: float, phase: Phase) -> Sample:
        cards = tuple(
            GpuSample(index=i, utilization_percent=100.0, power_w=91.0, power_limit_w=600.0)
            for i in range(2)
        )
        log = LogSample(lines=3, size_bytes=300, news_at=1003.0, waits=int((t - 1000) // 60))
        return Sample(t=t, wall_t=t, phase=phase, host=host(t), gpus=cards, log=log)

    world = World(tmp_path, lines=LOG[:3], eyes=eyes, outcomes=[NotYet()], timeout_s=3600.0)
    with pytest.raises(EngineError, match="all-reduce") as caught:
        world.run()
    assert caught.value.cause == "comm.allreduce-spin"
    assert caught.value.remedy
    assert 60 <= world.engine.ticks < 200


def test_one_message_of_a_waiting_worker_decides_nothing(tmp_path: Path) -> None:
    """The shm_broadcast line every minute, while bytes move: no verdict."""
    total = 10**11

    def eyes(t: float, phase: Phase) -> Sample:
        read = int(1e8 * (t - 1000.0))
        log = LogSample(lines=9, size_bytes=300, news_at=1003.0, waits=int((t - 1000) // 60))
        checkpoint = CheckpointSample(total_bytes=total, read_bytes=read, how="counted")
        return Sample(t=t, wall_t=t, phase=phase, host=host(t), checkpoint=checkpoint, log=log)

    wait = "(Worker) [shm_broadcast.py:1] No available shared memory broadcast block found in 60 s"
    lines = [*LOG[:2], *[wait if n % 60 == 0 else "" for n in range(200)], *LOG[2:]]
    world = World(tmp_path, lines, [*[NotYet()] * 20, Right({})], eyes=eyes, timeout_s=3600.0)
    assert world.run().phase is Phase.READY


def test_eyes_that_see_nothing_do_not_keep_a_good_engine_from_ready(tmp_path: Path) -> None:
    """NVML hangs, /proc is unreadable: every part is missing with its reason."""

    def eyes(t: float, phase: Phase) -> Sample:
        missing = {"gpus": "gpus: no answer for 40 s", "host": "unreadable"}
        return Sample(t=t, wall_t=t, phase=phase, missing=missing)

    world = World(tmp_path, eyes=eyes, outcomes=[NotYet(), NotYet(), Right({})])
    assert world.run().phase is Phase.READY


def test_eyes_that_fail_are_told_once_and_do_no_harm(tmp_path: Path) -> None:
    def eyes(t: float, phase: Phase) -> Sample:
        raise RuntimeError("boom")

    world = World(tmp_path, eyes=eyes, outcomes=[*[NotYet()] * 5, Right({})])
    assert world.run().phase is Phase.READY
    faults = [e for e in world.events if e.event == "observer-fault"]
    assert len(faults) == 1
    assert "boom" in faults[0].message


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_neither_ends_a_start_nor_prolongs_it(
    tmp_path: Path, jump_s: float
) -> None:
    """Deadlines and rules go by the steady clock; only time stamps jump."""

    def jump(t: float) -> float:
        return jump_s if t >= 1003.0 else 0.0

    good = World(tmp_path / "good", outcomes=[NotYet(), NotYet(), Right({})], wall_jump=jump)
    good.directory.mkdir()
    assert good.run().phase is Phase.READY
    assert good.events[-1].extra("start_s") < 30

    never = World(tmp_path / "never", lines=[], outcomes=[NotYet()], timeout_s=30, wall_jump=jump)
    never.directory.mkdir()
    with pytest.raises(TimedOutError):
        never.run()
    assert never.engine.ticks == 30


def test_evidence_is_there_before_the_engine_is_taken_down(tmp_path: Path) -> None:
    world = World(tmp_path, lines=[*LOG[:2], "ValueError: last words"], lives=5)
    with pytest.raises(EngineError, match="last words"):
        world.run()
    kept = newest(world.state)
    assert kept is not None
    assert kept.log[-1] == "ValueError: last words"
    assert kept.ended == "exit code 1"
    assert kept.deployment.phase is Phase.LOADING
    assert json.loads(world.state.state_file.read_text())["phase"] == "failed"


def test_a_log_that_is_rotated_or_cut_mid_start_hides_nothing(tmp_path: Path) -> None:
    """Moved away and begun anew after two lines, then truncated in place after two more."""
    world = World(tmp_path, outcomes=[NotYet(), Right({})])
    log = tmp_path / "log"

    def eyes(t: float, phase: Phase) -> Sample:
        if t == 1002.0:
            log.replace(tmp_path / "log.1")
        if t == 1004.0:
            log.write_text("")
        return Sample(t=t, wall_t=t, phase=phase)

    world.eyes = eyes
    assert world.run().phase is Phase.READY
    phases = {e.phase for e in world.events}
    assert {Phase.LOADING, Phase.ALLOCATING, Phase.WARMING} <= phases
