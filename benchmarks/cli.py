#!/usr/bin/env python3
"""How long `dsctl --help` takes, beside `python -c pass` and `vllm --help` on the same machine.

Whole processes, interleaved (A B C A B C …), medians. `vllm` is measured where the engine's
environment has been made. Run with the Python that has dsctl installed:

    .venv/bin/python benchmarks/cli.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7
GOAL_S = 0.3


def commands() -> dict[str, list[str]]:
    """What is measured, by name."""
    dsctl = str(Path(sys.executable).with_name("dsctl"))
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dsctl --help": [dsctl, "--help"],
        "dsctl up --help": [dsctl, "up", "--help"],
    }
    made = subprocess.run([dsctl, "env", "path"], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        found["vllm --help"] = [str(Path(made.stdout.strip()) / "bin" / "vllm"), "--help"]
    return found


def seconds(command: list[str]) -> float:
    """Wall time of one run, which must succeed."""
    began = time.perf_counter()
    env = os.environ | {"VLLM_PLUGINS": ""}
    subprocess.run(command, check=True, env=env, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure, print a table, print one JSON object."""
    measured = commands()
    times: dict[str, list[float]] = {name: [] for name in measured}
    for command in measured.values():  # fill the page cache
        seconds(command)
    for number in range(ROUNDS):
        for name, command in measured.items():
            if name == "vllm --help" and number >= 2:  # it takes seconds; two runs tell enough
                continue
            times[name].append(seconds(command))
    base = statistics.median(times["python -c pass"])
    print(f"{'command':<18} {'median s':>9} {'min s':>8} {'max s':>8} {'× python':>9}")
    medians = {}
    for name, values in times.items():
        medians[name] = statistics.median(values)
        print(
            f"{name:<18} {medians[name]:>9.3f} {min(values):>8.3f} {max(values):>8.3f} "
            f"{medians[name] / base:>9.1f}"
        )
    worst = max(v for k, v in medians.items() if k.startswith("dsctl"))
    print(json.dumps({"median_s": medians, "goal_s": GOAL_S, "met": worst < GOAL_S}))


if __name__ == "__main__":
    main()
