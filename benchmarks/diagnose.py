#!/usr/bin/env python3
"""How long `dsctl diagnose` takes over a large log on one core, and how much memory.

Five logs of 500 MB, each ending in the same failure: one of serving, one of an engine that starts
over and over and comes up (its state changes all the time), one of an engine that starts over and
over and fails each time (120 000 failures: the hardest), one that is all tracebacks, and one that
repeats the line which a hang is recognised by. `wc -l` of the same file stands beside them.
Peak memory and CPU time are the whole process's.

    .venv/bin/python benchmarks/diagnose.py [MEGABYTES]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_S = 20.0
LOGS = Path(__file__).parents[1] / "tests" / "logs"
FAILURE = LOGS / "memory.kv-too-small" / "positive-1.log"
WAITING = (
    b"(EngineCore_DP0 pid=214) INFO 12-01 01:24:00 [shm_broadcast.py:681] No available shared "
    b"memory broadcast block found in 60 seconds. This typically happens when some processes are "
    b"hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).\n"
)
CHILD = """
import json, resource, sys, time
from dsctl.diagnose.reading import diagnose_file
began = time.perf_counter()
cause = diagnose_file(sys.argv[1]).cause.id
took = time.perf_counter() - began
cpu = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"cause": cause, "seconds": took, "cpu_s": cpu, "peak_bytes": peak}))
"""


def samples() -> dict[str, bytes]:
    """What each log repeats, by name."""
    clean = b"".join(path.read_bytes() for path in sorted((LOGS / "clean").glob("*.log")))
    served = [
        line for line in clean.splitlines(keepends=True) if b"throughput" in line or b"POST" in line
    ]
    tracebacks = (LOGS / "memory.vram-oom-load" / "positive-1.log").read_bytes().splitlines(True)
    frames = [line for line in tracebacks if b"File " in line or b"return self" in line]
    return {
        "serving": b"".join(served),
        "restarts": clean,
        "failing restarts": b"".join(tracebacks),
        "tracebacks": b"".join(frames) * 20,
        "waiting": WAITING,
    }


def write(path: Path, sample: bytes, size: int) -> None:
    """Fill a file with a sample up to `size` bytes, and put the failure at its end."""
    block = sample * max(1, (1 << 20) // len(sample))
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(block)
        file.write(FAILURE.read_bytes())


def measure(path: Path) -> dict[str, float | str]:
    """Diagnose in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
    )
    result: dict[str, float | str] = json.loads(ran.stdout)
    return result


def main() -> None:
    """Measure, print a table, print one JSON object."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    results = {}
    heads = ("log", "MB", "s", "CPU s", "MB/s", "wc -l s", "peak MiB")
    print("{:<20} {:>5} {:>7} {:>7} {:>7} {:>8} {:>9}  cause".format(*heads))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "engine.log"
        for name, sample in samples().items():
            write(path, sample, megabytes * 10**6)
            began = time.perf_counter()
            subprocess.run(["wc", "-l", str(path)], check=True, capture_output=True)
            counted = time.perf_counter() - began
            result = measure(path)
            results[name] = result
            took, peak = float(result["seconds"]), float(result["peak_bytes"]) / 2**20
            cpu = float(result["cpu_s"])
            print(
                f"{name:<20} {megabytes:>5} {took:>7.2f} {cpu:>7.2f} {megabytes / took:>7.0f} "
                f"{counted:>8.2f} {peak:>9.0f}  {result['cause']}"
            )
    met = {
        name: float(r["cpu_s"]) < GOAL_S * megabytes / 500 and r["cause"] == "memory.kv-too-small"
        for name, r in results.items()
    }
    figures = {"megabytes": megabytes, "logs": results, "goal_cpu_s": GOAL_S, "met": met}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
