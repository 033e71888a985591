#!/usr/bin/env python3
"""How long a live preflight takes, beside its parts and `dsctl --help` on the same machine; and a
diagnose of a 500 MB log.

Whole processes, interleaved, medians. Run with the Python that has dsctl installed:

    .venv/bin/python benchmarks/preflight.py [--rounds 7] [--log-mb 500]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_PREFLIGHT_S = 1.0
GOAL_DIAGNOSE_S = 20.0
_LINE = (
    "(APIServer pid=7) INFO 12-01 01:02:{:02d} [loggers.py:273] Engine 000: Avg prompt throughput: "
    "{}.0 tokens/s, Avg generation throughput: 41.2 tokens/s, Running: 1 reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: 3.1%, Prefix cache hit rate: 12.4%\n"
)
_CAUSE = (
    "(EngineCore pid=91) ERROR 12-01 01:09:11 [core.py:871] torch.OutOfMemoryError: CUDA out of "
    "memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 95.07 GiB of which "
    "298.69 MiB is free.\n"
)


def commands() -> dict[str, list[str]]:
    """What is measured, by name. A failed verdict is an answer too."""
    dsctl = str(Path(sys.executable).with_name("dsctl"))
    return {
        "dsctl --help": [dsctl, "--help"],
        "dsctl facts": [dsctl, "facts"],
        "dsctl preflight (which profile?)": [dsctl, "preflight", "--format", "json"],
        "dsctl preflight -p cpu-canary": [dsctl, "preflight", "-p", "cpu-canary"],
    }


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
    return time.perf_counter() - began


def preflight_times(rounds: int) -> dict[str, float]:
    """Median wall time of each command; prints the table."""
    measured = commands()
    times: dict[str, list[float]] = {name: [] for name in measured}
    for command in measured.values():  # fill the page cache
        seconds(command)
    for _ in range(rounds):
        for name, command in measured.items():
            times[name].append(seconds(command))
    print(f"{'command':<34} {'median s':>9} {'min s':>8} {'max s':>8}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<34} {median:>9.3f} {min(values):>8.3f} {max(values):>8.3f}")
    return {name: statistics.median(values) for name, values in times.items()}


def diagnose_time(megabytes: int) -> dict[str, float | str]:
    """A log of that size with one cause at its end: seconds, and the reader's memory at most."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "engine.log"
        block = "".join(_LINE.format(n % 60, n * 7 % 4000) for n in range(4000))
        with log.open("w") as file:
            while file.tell() < megabytes * 10**6:
                file.write(block)
            file.write(_CAUSE)
        dsctl = str(Path(sys.executable).with_name("dsctl"))
        began = time.perf_counter()
        done = subprocess.run(
            [dsctl, "diagnose", "--format", "json", str(log)], capture_output=True, check=False
        )
        took = time.perf_counter() - began
    cause = json.loads(done.stdout)["cause"]["id"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"{f'dsctl diagnose, {megabytes} MB':<34} {took:>9.3f}  cause {cause}, ", end="")
    print(f"at most {peak / 1e6:.0f} MB of memory")
    return {"diagnose_s": took, "diagnose_peak_bytes": peak, "cause": cause}


def main() -> None:
    """Measure, print a table, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--log-mb", type=int, default=500, help="0: leave the diagnose part out")
    arguments = parser.parse_args()
    medians = preflight_times(arguments.rounds)
    worst = max(v for k, v in medians.items() if "preflight" in k)
    figures: dict[str, object] = {"median_s": medians, "goal_s": GOAL_PREFLIGHT_S}
    figures["met"] = worst < GOAL_PREFLIGHT_S
    if arguments.log_mb:
        found = diagnose_time(arguments.log_mb)
        figures |= found
        figures["diagnose_goal_s"] = GOAL_DIAGNOSE_S
        figures["diagnose_met"] = float(found["diagnose_s"]) < GOAL_DIAGNOSE_S
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
