#!/usr/bin/env python3
"""`dsctl up` against bare `vllm serve` with the same flags, both to the first right answer.

Both arms run the same argv and environment (taken from `dsctl up --dry-run`), in turn, in one run:
A B A B. The bare arm polls the endpoint as a script would and asks the same known question. The
goal: `dsctl` takes at most 1 s and 5 % more. What the bare arm never does (thinking, a tool call,
a full batch, sense) is what `dsctl` takes from there to "ready"; it is shown beside it.

    .venv/bin/python benchmarks/startup.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from dsctl.engine.state import StateDirectory
from dsctl.paths import user_paths

PROFILE = "cpu-canary"
DSCTL = str(Path(sys.executable).with_name("dsctl"))
PATIENCE_S = 300.0


def plan() -> dict[str, Any]:
    """The exact command and environment of the profile, with the runtime on its path."""
    done = subprocess.run(
        [DSCTL, "up", "--profile", PROFILE, "--engine", "process", "--dry-run", "--format", "json"],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def known_question() -> dict[str, Any]:
    """The first plain question of the canary."""
    import yaml

    path = Path(__file__).resolve().parent.parent / "canary" / "questions.yaml"
    document = yaml.safe_load(path.read_text())
    questions = document["questions"] if isinstance(document, dict) else document
    found: dict[str, Any] = next(q for q in questions if q["kind"] == "plain")
    return found


def bare(command: dict[str, Any], question: dict[str, Any]) -> float:
    """Seconds from starting `vllm serve` to its first right answer."""
    argv: list[str] = command["argv"]
    port = argv[argv.index("--port") + 1]
    base = f"http://127.0.0.1:{port}/v1"
    began = time.perf_counter()
    engine = subprocess.Popen(
        argv,
        env=command["env"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with httpx.Client(timeout=60.0) as client:
            while True:
                assert engine.poll() is None, "vllm serve ended"
                assert time.perf_counter() - began < PATIENCE_S, "vllm serve does not answer"
                try:
                    served = client.get(f"{base}/models").json()["data"][0]["id"]
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            body = {
                "model": served,
                "messages": question["messages"],
                "max_tokens": question.get("max_tokens", 256),
                "temperature": 0.0,
            }
            answer = client.post(f"{base}/chat/completions", json=body).json()
        text = answer["choices"][0]["message"]["content"]
        assert text.strip() == question["expected"].strip(), text
        return time.perf_counter() - began
    finally:
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()


def launched() -> tuple[float, float]:
    """Seconds of `dsctl up` to its first right answer, and to ready."""
    began, began_at = time.perf_counter(), time.time()
    subprocess.run(
        [DSCTL, "up", "--profile", PROFILE, "--engine", "process"], check=True, capture_output=True
    )
    ready = time.perf_counter() - began
    lines = StateDirectory(user_paths().deployment).events_file.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    right = next(event["t"] for event in events if event["event"] == "known-answer")
    subprocess.run([DSCTL, "down"], check=True, capture_output=True)
    return right - began_at, ready


def main() -> None:
    """Measure, print a table, print one JSON object."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    launched()  # environment, runtime, page cache and compile caches are there for both arms
    command, question = plan(), known_question()
    times: dict[str, list[float]] = {"vllm serve": [], "dsctl up": [], "to ready": []}
    for _ in range(rounds):
        times["vllm serve"].append(bare(command, question))
        for name, took in zip(("dsctl up", "to ready"), launched(), strict=True):
            times[name].append(took)
    print(f"{'arm':<12} {'median s':>9} {'min s':>8} {'max s':>8}")
    for name, values in times.items():
        print(
            f"{name:<12} {statistics.median(values):>9.2f} {min(values):>8.2f} {max(values):>8.2f}"
        )
    a, b, ready = (statistics.median(values) for values in times.values())
    over = statistics.median(
        y - x for x, y in zip(times["vllm serve"], times["dsctl up"], strict=True)
    )
    figures = {
        "vllm_serve_s": a,
        "dsctl_up_s": b,
        "ready_s": ready,
        "overhead_s": over,
        "goal_overhead_s": 1.0 + 0.05 * a,
        "met": over <= 1.0 + 0.05 * a,
        "rounds": rounds,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
