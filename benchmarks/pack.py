#!/usr/bin/env python3
"""Building a pack, beside a plain copy of the same bytes and the most obvious torch program.

All arms run on the same disk, in turn, each from a cold page cache, each until its bytes are
synced:

    copy   one sequential copy of the pack's files (read X, write X), 16 MiB at a time, fsync
    pack   `dsruntime.pack.build`: reads the checkpoint, digests it, writes base and correction
    torch  safe_open, unpack to one index per weight, look up, shift together, write, fsync;
           no checksums, no identity, nothing to resume (on a part of the layers, scaled up)

Throughput is bytes moved (read + written) a second; the goal is 0.8 of the copy's. Run with the
engine's Python:

    PYTHONPATH=runtime:. python benchmarks/pack.py [--gib 2] [--rounds 3] [--correction split]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.pack.support import write_shard

HIDDEN, INTERMEDIATE = 4096, 2048
EXPERTS = 8
EXPERT_BYTES = 3 * HIDDEN * INTERMEDIATE * 17 // 32
GOAL = 0.8


def make_checkpoint(directory: Path, gib: float) -> int:
    """Experts of the real shape in shards of one layer; the number of layers."""
    layers = max(1, round(gib * 2**30 / (EXPERTS * EXPERT_BYTES)))
    random = np.random.default_rng(0)
    weight_map = {}
    for layer in range(layers):
        tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        for expert in range(EXPERTS):
            for matrix, n, k in (
                ("w1", INTERMEDIATE, HIDDEN),
                ("w2", HIDDEN, INTERMEDIATE),
                ("w3", INTERMEDIATE, HIDDEN),
            ):
                stem = f"layers.{layer}.ffn.experts.{expert}.{matrix}"
                tensors[f"{stem}.weight"] = ("I8", (n, k // 2), random.bytes(n * k // 2))
                scales = random.integers(100, 140, (n, k // 32), dtype=np.uint8)
                tensors[f"{stem}.scale"] = ("F8_E8M0", (n, k // 32), scales.tobytes())
        name = f"model-{layer:05}.safetensors"
        write_shard(directory / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
    index = {"weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return layers


def cool(directory: Path) -> None:
    """Sync, and drop the files of a directory from the page cache."""
    os.sync()
    for path in directory.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def plain_copy(source: Path, target: Path) -> float:
    """Seconds to copy the data files of `source` one after another."""
    target.mkdir()
    buffer = bytearray(16 << 20)
    began = time.perf_counter()
    for path in sorted(source.glob("*.bin")):
        with path.open("rb", buffering=0) as a, (target / path.name).open("wb", buffering=0) as b:
            while count := a.readinto(buffer):
                b.write(memoryview(buffer)[:count])
            os.fsync(b.fileno())
    return time.perf_counter() - began


def pack(checkpoint: Path, out: Path, correction: str, threads: int) -> tuple[float, int]:
    """Seconds of a whole `pack build` less interpreter start, and its peak resident memory."""
    program = (
        "import sys, time, json; from pathlib import Path\n"
        "from dsruntime.codec.layout import Correction\n"
        "from dsruntime.pack.build import build\n"
        "began = time.perf_counter()\n"
        "build(Path(sys.argv[1]), Path(sys.argv[2]), correction=Correction(sys.argv[3]),"
        " threads=int(sys.argv[4]))\n"
        "took = time.perf_counter() - began\n"
        "peak = [l for l in open('/proc/self/status') if l.startswith('VmHWM')][0].split()[1]\n"
        "print(json.dumps([took, int(peak) * 1024]))\n"
    )
    argv = [sys.executable, "-c", program, str(checkpoint), str(out), correction, str(threads)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    took, peak = json.loads(done.stdout)
    return float(took), int(peak)


def obvious_torch(checkpoint: Path, out: Path, layers: int, correction: str) -> float:
    """Seconds of the straightforward program for `layers` layers."""
    import torch
    from safetensors import safe_open

    code = torch.tensor([2, 2, 2, 2, 2, 3, 3, 3, 1, 1, 1, 1, 1, 0, 0, 0], dtype=torch.uint8)
    digit = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2] * 2, dtype=torch.uint8)
    began = time.perf_counter()
    with (out / "base").open("wb") as base, (out / "correction").open("wb") as rest:
        for layer in range(layers):
            with safe_open(checkpoint / f"model-{layer:05}.safetensors", "pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    tensor = file.get_tensor(name)
                    if name.endswith("scale"):
                        base.write(tensor.view(torch.uint8).numpy().tobytes())
                        continue
                    packed = tensor.view(torch.uint8)
                    nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
                    codes = code[nibbles].unflatten(1, (-1, 4))
                    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
                    base.write((codes << shifts).sum(-1, dtype=torch.uint8).numpy().tobytes())
                    if correction == "plain":
                        rest.write(packed.numpy().tobytes())
                        continue
                    digits = digit[nibbles].unflatten(1, (-1, 2))
                    pairs = digits[..., 0] + 5 * digits[..., 1]
                    low = (pairs & 15).unflatten(1, (-1, 2))
                    rest.write((low[..., 0] | (low[..., 1] << 4)).numpy().tobytes())
                    high = (pairs >> 4).unflatten(1, (-1, 8))
                    bits = torch.arange(8, dtype=torch.uint8)
                    rest.write((high << bits).sum(-1, dtype=torch.uint8).numpy().tobytes())
        for handle in (base, rest):
            handle.flush()
            os.fsync(handle.fileno())
    return time.perf_counter() - began


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All arms in turn; figures."""
    checkpoint = root / "checkpoint"
    checkpoint.mkdir()
    layers = make_checkpoint(checkpoint, options.gib)
    out = root / "packs"
    pack(
        checkpoint, out, options.correction, options.threads
    )  # compiles the loops, makes the copy's source
    made = next(out.glob("pack-*"))
    written = sum(p.stat().st_size for p in made.glob("*.bin"))
    read = sum(p.stat().st_size for p in checkpoint.glob("*.safetensors"))
    part = max(1, layers // 4)
    rates: dict[str, list[float]] = {"copy": [], "pack": [], "torch": []}
    peak = 0
    for _ in range(options.rounds):
        cool(made)
        rates["copy"].append(2 * written / plain_copy(made, root / "copy"))
        shutil.rmtree(root / "copy")
        cool(checkpoint)
        took, used = pack(checkpoint, root / "again", options.correction, options.threads)
        rates["pack"].append((read + written) / took)
        peak = max(peak, used)
        shutil.rmtree(root / "again")
        cool(checkpoint)
        (root / "torch").mkdir()
        took = obvious_torch(checkpoint, root / "torch", part, options.correction)
        rates["torch"].append((read + written) * part / layers / took)
        shutil.rmtree(root / "torch")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{'arm':<8}{'moved MB/s':>12}{'min':>9}{'max':>9}{'of copy':>9}")
    for name, values in rates.items():
        row = (medians[name] / 1e6, min(values) / 1e6, max(values) / 1e6)
        print(f"{name:<8}{row[0]:>12.0f}{row[1]:>9.0f}{row[2]:>9.0f}", end="")
        print(f"{medians[name] / medians['copy']:>9.2f}")
    of_copy = medians["pack"] / medians["copy"]
    return {
        "moved_bytes_per_s": medians,
        "pack_of_copy": of_copy,
        "pack_of_torch": medians["pack"] / medians["torch"],
        "peak_bytes": peak,
        "read_bytes": read,
        "written_bytes": written,
        "correction": options.correction,
        "threads": options.threads,
        "rounds": options.rounds,
        "goal_of_copy": GOAL,
        "met": of_copy >= GOAL and peak <= 2**30,
    }


def main() -> None:
    """Measure, print a table, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--correction", choices=("split", "plain"), default="split")
    parser.add_argument("--dir", type=Path, help="on which disk (default: the temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsctl-pack-", dir=options.dir) as root:
        figures = measure(Path(root), options)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
