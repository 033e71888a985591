#!/usr/bin/env python3
"""How well the progress of a load is told from outside, for four ways of reading a checkpoint.

A synthetic checkpoint is read by the engine's own reader (vLLM's `safetensors_weights_iterator`:
mapped, read whole, prefetched) and by direct reads at offsets, slowed down to about 20 s, while the
supervisor's sampler looks on twice a second. The child tells what it has really handed out; the
error is the difference to what the sampler said at that moment, in percent of the whole. An eager
reader takes in a file at once and hands it out slowly: there the error is up to one of the shards.

    .venv/bin/python benchmarks/load_progress.py [GIGABYTES]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from statistics import mean

from dsctl.supervise.samplers.checkpoint import CheckpointReader, shards_of
from dsctl.supervise.samplers.proc import ProcessReader

LOOK_EVERY_S = 0.5
SHARDS, TENSORS = 6, 40
CHILD = """
import json, os, sys, time
how, seconds, *paths = sys.argv[1:]
total = sum(os.path.getsize(p) for p in paths)
pace = float(seconds) / total
done = 0

def told(size):
    global done
    done += size
    print(json.dumps([time.monotonic(), done]), flush=True)
    time.sleep(size * pace)

if how == "direct":
    import mmap
    block = 8 << 20
    buffer = mmap.mmap(-1, block)
    print("ready", flush=True)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        at = 0
        while (count := os.preadv(descriptor, [buffer], at)) > 0:
            at += count
            told(count)
        os.close(descriptor)
else:
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
    print("ready", flush=True)
    for _, tensor in safetensors_weights_iterator(paths, False, None if how == "mapped" else how):
        tensor.clone()
        told(tensor.numel() * tensor.element_size())
"""


def write_checkpoint(directory: Path, size: int) -> list[Path]:
    """Shards of one-byte tensors in the safetensors format, of `size` bytes together."""
    paths = []
    each = size // SHARDS // TENSORS // 4096 * 4096
    noise = os.urandom(1 << 20)
    for number in range(1, SHARDS + 1):
        path = directory / f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        header = {
            f"t{number}.{i}": {
                "dtype": "U8",
                "shape": [each],
                "data_offsets": [i * each, (i + 1) * each],
            }
            for i in range(TENSORS)
        }
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 4096)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            left = each * TENSORS
            while left > 0:
                file.write(noise[: min(left, len(noise))])
                left -= len(noise)
        paths.append(path)
    os.sync()
    return paths


def measure(how: str, paths: list[Path], python: str, seconds: float) -> dict[str, float | str]:
    """Read in a child and look on."""
    child = subprocess.Popen(
        [python, "-c", CHILD, how, str(seconds), *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert child.stdout is not None
    while b"ready" not in (line := child.stdout.readline()):
        if not line:
            raise SystemExit(f"the reader ({how}) did not start")
    processes = ProcessReader(lambda: [child.pid])
    reader = CheckpointReader(
        shards_of(paths), pids=lambda: processes.pids, samples=lambda: processes()
    )
    processes()
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    truth, looks, cost, rest = [(time.monotonic(), 0)], [], [], b""
    while child.poll() is None:
        cpu = time.thread_time()
        processes()
        seen = reader()
        cost.append(time.thread_time() - cpu)
        looks.append((time.monotonic(), seen.read_bytes, seen.how))
        with suppress(BlockingIOError):
            rest += os.read(pipe, 1 << 20)
        *lines, rest = rest.split(b"\n")
        truth += [tuple(json.loads(line)) for line in lines if line.startswith(b"[")]
        time.sleep(LOOK_EVERY_S)
    total = sum(p.stat().st_size for p in paths)
    times = [t for t, _ in truth]
    errors = [
        100 * abs(read - truth[bisect_right(times, t) - 1][1]) / total for t, read, _ in looks
    ]
    return {
        "how": max({h for _, _, h in looks}, key=[h for _, _, h in looks].count),
        "looks": len(looks),
        "mean_error_percent": mean(errors),
        "worst_error_percent": max(errors),
        "look_cpu_ms": 1000 * mean(cost),
    }


def main() -> None:
    """Measure, print a table, print one JSON object."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.5
    python = Path(
        subprocess.run(
            [sys.executable, "-m", "dsctl", "env", "path"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip(),
        "bin",
        "python",
    )
    directory = Path(tempfile.mkdtemp(prefix="dsctl-load-"))
    results = {}
    try:
        paths = write_checkpoint(directory, int(gigabytes * 1e9))
        print(f"{gigabytes:g} GB in {SHARDS} shards, looked at every {LOOK_EVERY_S:g} s")
        print(
            f"{'reading':<10}{'told by':<28}{'looks':>6}{'mean error':>12}{'worst':>9}"
            f"{'a look':>10}"
        )
        for how in ("mapped", "eager", "prefetch", "direct"):
            found = results[how] = measure(how, paths, str(python), 20.0)
            print(
                f"{how:<10}{found['how']:<28}{found['looks']:>6}"
                f"{found['mean_error_percent']:>10.1f} %{found['worst_error_percent']:>7.1f} %"
                f"{found['look_cpu_ms']:>7.2f} ms",
                flush=True,
            )
    finally:
        shutil.rmtree(directory)
    print(json.dumps({"benchmark": "load_progress", "gigabytes": gigabytes, "ways": results}))


if __name__ == "__main__":
    main()
