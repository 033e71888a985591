#!/usr/bin/env python3
"""Minutes of streaming clients against a deployment: does anything grow?

Brings up a profile in a state of its own (loopback only), lets a few clients stream answers without
a pause, and looks now and then at memory, descriptors and threads of the supervisor, the keeper
and the engine. Growth is judged after a warm-up of six minutes (the supervisor keeps the samples
of five): the slope of a line through what follows, and the middle of its last fifth against that of
its first. It does not grow where the slope stays below 0.2 % of the level a minute (or 64 KiB a
minute; 256 KiB for the supervisor, whose heap still settles then) and descriptors differ by at
most two. What the supervisor does every five seconds is therefore done 4,000 times in a row as well
(five and a half hours of serving), in this process: the last half must add less than 256 KiB.

    .venv/bin/python benchmarks/soak.py [--minutes 12] [--clients 3] [--profile P] [--only-looks]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

DSCTL = str(Path(sys.executable).with_name("dsctl"))
EVERY_S = 5.0
WARM_UP_S = 360.0
PATIENCE_S = 900.0
_SETTLING = 256 * 1024
QUESTIONS = ("Who are you?", "How many layers does DeepSeek-V4-Flash have?", "What is the indexer?")


@dataclass
class Watched:
    """The samples of one part: seconds, resident bytes, anonymous bytes, descriptors, threads.

    Growth is told by anonymous memory: pages of programs and libraries come and go with whoever
    else has them mapped.
    """

    rows: list[tuple[float, int, int, int, int]] = field(default_factory=list)

    def look(self, t: float, processes: list[psutil.Process]) -> None:
        rss = anonymous = descriptors = threads = 0
        for process in processes:
            try:
                rss += process.memory_info().rss
                anonymous += anonymous_bytes(process.pid)
                descriptors += process.num_fds()
                threads += process.num_threads()
            except (psutil.Error, OSError):
                continue
        self.rows.append((t, rss, anonymous, descriptors, threads))

    def figures(self, warm_up_s: float, least_bytes: int = 64 * 1024) -> dict[str, Any]:
        """Levels, slopes and the verdict after the warm-up."""
        rows = [row for row in self.rows if row[0] >= warm_up_s] or self.rows
        fifth = max(1, len(rows) // 5)
        found: dict[str, Any] = {"samples": len(rows)}
        for at, name in (
            (1, "rss_bytes"),
            (2, "anonymous_bytes"),
            (3, "descriptors"),
            (4, "threads"),
        ):
            first = statistics.median(row[at] for row in rows[:fifth])
            last = statistics.median(row[at] for row in rows[-fifth:])
            slope = slope_of([(row[0] / 60.0, float(row[at])) for row in rows])
            found[name] = {"first": first, "last": last, "per_minute": slope}
        level = found["anonymous_bytes"]
        bound = max(0.002 * level["first"], least_bytes)
        files = found["descriptors"]
        found["grows"] = bool(
            (level["per_minute"] > bound and level["last"] > level["first"])
            or files["last"] - files["first"] > 2
        )
        return found


def anonymous_bytes(pid: int) -> int:
    """Resident anonymous memory: `RssAnon` of proc_pid_status(5)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def slope_of(points: list[tuple[float, float]]) -> float:
    """Least squares: growth per unit of the first coordinate."""
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope


@dataclass
class Client:
    """Streams one answer after the other until told to stop."""

    url: str
    model: str
    number: int
    stop: threading.Event
    answers: int = 0
    chunks: int = 0
    errors: int = 0

    def run(self) -> None:
        with httpx.Client(timeout=120.0) as client:
            while not self.stop.is_set():
                body = {
                    "model": self.model,
                    "messages": [
                        {"role": "user", "content": QUESTIONS[self.answers % len(QUESTIONS)]}
                    ],
                    "max_tokens": 64,
                    "stream": True,
                    "temperature": 0.0,
                }
                try:
                    with client.stream("POST", f"{self.url}/chat/completions", json=body) as reply:
                        self.chunks += sum(
                            1 for line in reply.iter_lines() if line.startswith("data: {")
                        )
                    self.answers += 1
                except httpx.HTTPError:
                    self.errors += 1
                    time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dsctl(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DSCTL, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def parts_of(status: dict[str, Any]) -> dict[str, list[psutil.Process]]:
    """The processes of supervisor, keeper and engine."""
    engine = psutil.Process(status["pid"])
    found = {"engine": [engine, *engine.children(recursive=True)]}
    keeper = engine.parent()
    if keeper is not None and keeper.pid > 1:
        found["keeper"] = [keeper]
    if status["supervisor"]:
        found["supervisor"] = [psutil.Process(status["supervisor"])]
    return found


def soak(env: dict[str, str], seconds: float, clients: int) -> dict[str, Any]:
    """Run the clients; what was seen."""
    time.sleep(2.0)
    status = json.loads(dsctl(env, "status", "--format", "json").stdout)
    stop = threading.Event()
    streams = [Client(status["endpoint"], status["model"], n, stop) for n in range(clients)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in streams]
    for thread in threads:
        thread.start()
    watched: dict[str, Watched] = {}
    began = time.monotonic()
    cpu_began = cpu_of(status["supervisor"])
    while (now := time.monotonic() - began) < seconds:
        for name, processes in parts_of(status).items():
            watched.setdefault(name, Watched()).look(now, processes)
        time.sleep(EVERY_S)
    stop.set()
    for thread in threads:
        thread.join(timeout=130)
    after = json.loads(dsctl(env, "status", "--format", "json").stdout)
    warm_up_s = min(WARM_UP_S, seconds / 2)
    return {
        "seconds": seconds,
        "clients": clients,
        "answers": sum(client.answers for client in streams),
        "chunks": sum(client.chunks for client in streams),
        "errors": sum(client.errors for client in streams),
        "ready_at_the_end": after["ready"],
        "restarts": after["restarts"],
        "supervisor_cpu_percent": 100 * (cpu_of(status["supervisor"]) - cpu_began) / seconds,
        "parts": {
            name: part.figures(warm_up_s, _SETTLING if name == "supervisor" else 64 * 1024)
            for name, part in watched.items()
        },
    }


def looks(directory: Path, count: int = 4000) -> dict[str, Any]:
    """The supervisor's look at a serving engine, `count` times: anonymous bytes after each quarter.

    It looks at a process that sleeps; every reader but the GPUs' is called in every round.
    """
    from dsctl.engine.identity import identify
    from dsctl.model.endpoint import Endpoint
    from dsctl.model.event import Phase
    from dsctl.supervise.journal import Journal
    from dsctl.supervise.observer import Observer, SampleFile
    from dsctl.supervise.rules.context import Context
    from dsctl.supervise.samplers.sampling import Sampling, Subject

    now, log = [0.0], directory / "engine.log"
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    subject = Subject(engine=identify(sleeper.pid), endpoint=Endpoint(port=9), log=log)
    eyes = Sampling(subject, clock=lambda: now[0])
    journal = Journal(lambda event: None, time.time)
    samples = directory / "samples.jsonl"
    observer = Observer(eyes, lambda: True, Context(phase_began=0.0), journal, samples)
    quarters = []
    with SampleFile(samples) as kept:
        for number in range(1, count + 1):
            now[0] += 5.0
            for name, reader in eyes._readers.items():
                if name != "gpus":
                    reader.read_now()
            with log.open("a") as file:
                file.write(f'INFO: 127.0.0.1:{number} - "POST /v1/chat/completions" 200 OK\n')
            observer.look(kept)
            observer.tell(Phase.READY)
            if number % (count // 4) == 0:
                gc.collect()
                quarters.append(anonymous_bytes(os.getpid()))
    last = observer.window.last
    sleeper.kill()
    sleeper.wait()
    assert last is not None, "it did not look"
    assert last.processes, last.missing
    assert last.host, last.missing
    added = quarters[-1] - quarters[1]
    return {"looks": count, "quarters_bytes": quarters, "grows": added >= _SETTLING}


def cpu_of(pid: int | None) -> float:
    """CPU seconds of a process and of the helpers it has."""
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def main() -> None:
    """Bring up, soak, take down, print a table and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--profile", default="cpu-canary")
    parser.add_argument("--only-looks", action="store_true", help="without an engine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsctl-looks-") as place:
        looked = looks(Path(place))
    shown = ", ".join(f"{amount / 2**20:.1f}" for amount in looked["quarters_bytes"])
    print(
        f"{looked['looks']} looks: {shown} MiB anonymous after each quarter: "
        f"{'grows' if looked['grows'] else 'steady'}"
    )
    if asked.only_looks:
        print(json.dumps({"looks": looked, "steady": not looked["grows"]}))
        return
    with tempfile.TemporaryDirectory(prefix="dsctl-soak-") as home:
        env = os.environ | {"XDG_STATE_HOME": f"{home}/state", "XDG_CONFIG_HOME": f"{home}/config"}
        up = dsctl(
            env,
            *("up", "--profile", asked.profile, "--engine", "process"),
            *("--set", f"port={free_port()}"),
        )
        if up.returncode != 0:
            sys.exit(up.stderr)
        try:
            found = soak(env, asked.minutes * 60, asked.clients)
        finally:
            dsctl(env, "down")
    print(f"{'part':<11} {'':<15} {'first':>12} {'last':>12} {'per minute':>12}  verdict")
    for name, part in found["parts"].items():
        for key in ("rss_bytes", "anonymous_bytes", "descriptors", "threads"):
            row = part[key]
            scale, unit = (1 / 2**20, " MiB") if key.endswith("bytes") else (1.0, "")
            values = [f"{row[k] * scale:,.1f}{unit}" for k in ("first", "last", "per_minute")]
            verdict = ("grows" if part["grows"] else "steady") if key == "anonymous_bytes" else ""
            print(
                f"{name:<11} {key:<15} {values[0]:>12} {values[1]:>12} {values[2]:>12}  {verdict}"
            )
    found["looks"] = looked
    grown = [part["grows"] for part in found["parts"].values()]
    found["steady"] = not any((*grown, looked["grows"]))
    print(
        f"{found['answers']} answers, {found['chunks']} chunks, {found['errors']} errors; "
        f"supervisor {found['supervisor_cpu_percent']:.2f} % of one core"
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
