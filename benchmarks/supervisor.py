#!/usr/bin/env python3
"""What supervision costs: the goal is under 1 % of one core, everything counted.

On a live canary (the deployment that is up, else one is brought up and taken down again):

- serving: the real supervisor process with its helpers, from /proc, over the whole span, once it
  has begun (importing and adopting takes it about 0.6 s of one core, once);
- loading: the same sampling, rules and log following at their pace of a start, in this process,
  on the same process tree, with the cost of each sampler on its own.

    .venv/bin/python benchmarks/supervisor.py [SECONDS]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dsctl.engine.select import engine_for
from dsctl.engine.state import StateDirectory
from dsctl.model.event import Phase
from dsctl.paths import user_paths
from dsctl.supervise.adopt import observer_for
from dsctl.supervise.journal import Journal
from dsctl.supervise.logtail import LogTail
from dsctl.supervise.phases import read_line
from dsctl.supervise.presence import supervisor_of
from dsctl.supervise.rules import assess, outlook
from dsctl.supervise.samplers.sampling import Sampling
from dsctl.supervise.situation import read_situation

GOAL_PERCENT = 1.0
POLL_S = 0.1  # of the watch of a start
SETTLE_S = 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def deployment() -> Iterator[StateDirectory]:
    """The deployment that is up, or one made for this."""
    state = StateDirectory(user_paths().deployment)
    found = state.read()
    if found is not None and engine_for(found.engine, state).is_alive(found):
        yield state
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dsctl = [sys.executable, "-m", "dsctl"]
    up = ["up", "--profile", "cpu-canary", "--set", f"port={port}", "--engine", "process"]
    subprocess.run([*dsctl, *up, "--detach"], check=True, stdout=sys.stderr)
    try:
        yield state
    finally:
        subprocess.run([*dsctl, "down"], check=True, stdout=sys.stderr)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, with its children that have ended and those that live."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(entry.name) == pid:
            total += sum(map(int, fields[11:15])) / TICKS_PER_S
        elif int(fields[1]) == pid:
            total += sum(map(int, fields[11:13])) / TICKS_PER_S
    return total


def serving(state: StateDirectory, span_s: float) -> dict[str, float]:
    """Percent of one core that the real supervisor takes while the engine serves."""
    supervisor = supervisor_of(state)
    if supervisor is None:
        raise SystemExit("no supervisor watches this deployment: start it with `--detach`")
    time.sleep(SETTLE_S)
    before, began = cpu_s(supervisor.pid), time.monotonic()
    time.sleep(span_s)
    took = time.monotonic() - began
    status = Path(f"/proc/{supervisor.pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) << 10
    used = cpu_s(supervisor.pid) - before
    return {"span_s": took, "percent": 100 * used / took, "resident_bytes": resident}


def loading(state: StateDirectory, span_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Percent of one core at the pace of a start; milliseconds of one read by sampler."""
    found, situation = state.read(), read_situation(state)
    if found is None or situation is None:
        raise SystemExit("what was started is not known any more")
    told: list[object] = []
    engine = engine_for(found.engine, state)
    journal = Journal(told.append, clock=time.time)
    with tempfile.TemporaryDirectory() as scratch:
        watching = observer_for(found, situation, state, journal, engine)
        assert watching is not None
        observer = replace(watching, file=Path(scratch, "samples.jsonl"))
        assert isinstance(observer.eyes, Sampling)
        tail = LogTail(engine.log_path(found))
        for text in tail.drain():
            read_line(text)
        helpers = observer.eyes.helper_pids
        before, began = time.process_time() + sum(map(cpu_s, helpers)), time.monotonic()
        observer.start(Phase.LOADING)
        while time.monotonic() - began < span_s:
            for text in tail.poll():
                read_line(text)
            observer.tell(Phase.LOADING)
            time.sleep(POLL_S)
        took = time.monotonic() - began
        used = time.process_time() + sum(map(cpu_s, observer.eyes.helper_pids)) - before
        costs = {
            name: 1000 * cost.cpu_s / cost.reads
            for name, cost in observer.eyes.costs().items()
            if cost.reads
        }
        cpu = time.thread_time()
        for _ in range(10):
            assess(observer.window, observer.context)
            outlook(observer.window, observer.context)
        costs["(all rules)"] = 100 * (time.thread_time() - cpu)
        observer.close()
        tail.close()
    return {
        "span_s": took,
        "percent": 100 * used / took,
        "looks": len(observer.window.samples),
    }, costs


def main() -> None:
    """Measure, print a table, print one JSON object."""
    span_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with deployment() as state:
        results = {"serving": serving(state, span_s)}
        results["loading"], costs = loading(state, span_s)
    print(f"{'phase':<12}{'seconds':>9}{'of one core':>14}")
    for phase, found in results.items():
        print(f"{phase:<12}{found['span_s']:>9.0f}{found['percent']:>12.2f} %")
    print(f"\n{'sampler':<14}{'one read':>12}")
    for name, milliseconds in sorted(costs.items(), key=lambda item: -item[1]):
        print(f"{name:<14}{milliseconds:>9.2f} ms")
    worst = max(found["percent"] for found in results.values())
    print(f"\ngoal: under {GOAL_PERCENT:g} % of one core: {'met' if worst < 1 else 'NOT met'}")
    print(
        json.dumps(
            {
                "benchmark": "supervisor",
                "goal_percent": GOAL_PERCENT,
                "percent": {phase: found["percent"] for phase, found in results.items()},
                "resident_bytes": results["serving"]["resident_bytes"],
                "read_ms": costs,
            }
        )
    )


if __name__ == "__main__":
    main()
