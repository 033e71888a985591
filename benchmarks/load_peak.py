#!/usr/bin/env python3
"""What a start needs at its peak: stock loading, a pool that comes first, and ours.

On a synthetic checkpoint (the real architecture and formats, a few layers of many experts) the real
engine is started and answers one prompt as long as a step may be, once for each arm:

    native         FP4 experts through vLLM's own loader
    staged+first   2-bit experts the usual way: vLLM's loader fills a parameter for every FP4
                   tensor, then each layer is converted; the correction pool is allocated first
    streamed+first 2-bit experts straight from the pack into place; the pool first
    ours           straight from the pack into place; the pool when all the rest has its memory

Memory is what cannot be dropped (anonymous and shared pages, sampled every 2 ms; page cache not
counted). Columns: the peak until the model is loaded, until the engine is ready, until the prompt
is answered; what is held when it is ready; and the load's surplus over that.

Then a limit is set between what ours needs and what the others need, and native, staged+first and
ours are started again inside it (a control group where this process may make one, else
RLIMIT_DATA): the first two must die and ours must answer.

    PYTHONPATH=runtime:. python benchmarks/load_peak.py [--gib 2] [--pool 0.25]

The last line is one JSON object; exit code 0: the limit told them apart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from canary.export import official_config, official_tensors
from canary.names import EXPERTS, official_name
from dsruntime.codec.layout import Correction
from dsruntime.pack.build import build

HIDDEN, INTERMEDIATE, EXPERT_COUNT = 1024, 1024, 128
EXPERT_BYTES = 3 * HIDDEN * INTERMEDIATE * 17 // 32
ROOT = Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 900
GIB = 1 << 30


@dataclass(frozen=True)
class Arm:
    """How one start is made."""

    name: str
    worker: str
    settings: dict[str, Any]


@dataclass
class Start:
    """What one start came to; bytes."""

    arm: str
    limit_bytes: int | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    data_peak_bytes: int = 0
    seconds: float = 0.0
    returncode: int | None = None

    @property
    def answered(self) -> bool:
        return "answered" in self.peaks and self.returncode == 0


def make_checkpoint(directory: Path, gib: float) -> int:
    """Random weights in the official names and formats, a shard a layer; the number of layers."""
    from transformers import DeepseekV4ForCausalLM

    from tests.runtime.support.tiny import TinyShape, configuration

    layers = max(3, round(gib * GIB / (EXPERT_COUNT * EXPERT_BYTES)))
    shape = TinyShape(
        hidden=HIDDEN,
        moe_intermediate=INTERMEDIATE,
        ratios=(0, 0, *((4, 128) * layers))[:layers],
        heads=8,
        experts=EXPERT_COUNT,
        experts_per_token=6,
        index_topk=512,
        vocabulary=1024,
    )
    with torch.device("meta"):
        model = DeepseekV4ForCausalLM(configuration(shape))
    generator = torch.Generator().manual_seed(0)
    dense = {
        name: _dense(name, tensor, generator)
        for name, tensor in model.state_dict().items()
        if not EXPERTS.search(official_name(name))
    }
    weight_map: dict[str, str] = {}
    _save(directory, "model-dense.safetensors", official_tensors(dense), weight_map)
    for layer in range(layers):
        tensors = _experts(f"layers.{layer}.ffn.experts", np.random.default_rng(layer))
        _save(directory, f"model-{layer:05}.safetensors", tensors, weight_map)
    (directory / "config.json").write_text(json.dumps(official_config(model.config)))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return layers


def _dense(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if name.endswith("tid2eid"):
        return torch.randint(0, EXPERT_COUNT, tensor.shape, generator=generator)
    scale = 1.0 if tensor.dim() < 2 else tensor.shape[-1] ** -0.5
    return torch.randn(tensor.shape, generator=generator) * scale


def _experts(prefix: str, random: np.random.Generator) -> dict[str, torch.Tensor]:
    shapes = {
        "w1": (INTERMEDIATE, HIDDEN), "w2": (HIDDEN, INTERMEDIATE), "w3": (INTERMEDIATE, HIDDEN)
    }  # fmt: skip
    tensors = {}
    for expert in range(EXPERT_COUNT):
        for matrix, (n, k) in shapes.items():
            codes = torch.frombuffer(bytearray(random.bytes(n * k // 2)), dtype=torch.int8)
            codes = codes.view(n, k // 2)
            drawn = random.integers(118, 122, (n, k // 32), dtype=np.uint8)
            scales = torch.from_numpy(drawn).view(torch.float8_e8m0fnu)
            tensors[f"{prefix}.{expert}.{matrix}.weight"] = codes
            tensors[f"{prefix}.{expert}.{matrix}.scale"] = scales
    return tensors


def _save(
    directory: Path, name: str, tensors: dict[str, torch.Tensor], weight_map: dict[str, str]
) -> None:
    save_file(tensors, str(directory / name))
    weight_map |= dict.fromkeys(tensors, name)


def plugin_directory(root: Path) -> Path:
    """Where vLLM finds our plugin, as if the wheel were installed."""
    info = root / "site" / "dsruntime-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dsruntime\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ndsruntime = dsruntime.plugin:register\n"
    )
    return info.parent


class Sampler:
    """The memory of a process, again and again, and its peak since the start."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        self.held = self.peak = self.data_peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.002):
            try:
                fields = [int(f) * PAGE for f in (self._directory / "statm").read_text().split()]
            except (OSError, ValueError):
                return
            _, resident, backed_by_files, _, _, data, _ = fields
            self.held = resident - backed_by_files
            self.peak = max(self.peak, self.held)
            self.data_peak = max(self.data_peak, data)


@contextmanager
def control_group(limit_bytes: int) -> Iterator[Callable[[], None]]:
    """What a child must call to be under the limit; below this process's own group.

    Raises:
        OSError: this process may not make one.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version1 = [path for _, kinds, path in lines if "memory" in kinds.split(",")]
    if version1:
        top, own, name = Path("/sys/fs/cgroup/memory"), version1[0], "memory.limit_in_bytes"
        extra = "memory.memsw.limit_in_bytes"
    else:
        top, own, name = Path("/sys/fs/cgroup"), lines[-1][2], "memory.max"
        extra = "memory.swap.max"
    group = top / own.lstrip("/") / f"dsctl-load-peak-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit_bytes))
        if (group / extra).exists():
            (group / extra).write_text(str(limit_bytes if version1 else 0))

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        yield enter
    finally:
        for _ in range(100):  # until the last of its processes is really gone
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


@contextmanager
def data_limit(limit_bytes: int) -> Iterator[Callable[[], None]]:
    """The same by RLIMIT_DATA, which counts what is reserved and not only what is used."""

    def enter() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    yield enter


def start(arm: Arm, checkpoint: Path, env: dict[str, str], options: argparse.Namespace,
          enter: Callable[[], None] | None = None) -> Start:  # fmt: skip
    """Start the engine, sample it, and wait until it has answered or died."""
    argv = [sys.executable, str(ROOT / "benchmarks" / "load_peak_engine.py"), str(checkpoint)]
    argv += [arm.worker, json.dumps(arm.settings), str(options.tokens)]
    log = options.work / f"{arm.name.replace('+', '-')}{'-limited' if enter else ''}.log"
    found = Start(arm.name)
    began = time.perf_counter()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=enter
        )
        sampler = Sampler(process.pid)
        guard = threading.Timer(PATIENCE_S, process.kill)
        guard.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("MARK "):
                name = line.split()[1]
                time.sleep(0.01)  # a sample after the mark
                found.peaks[name], found.held[name] = sampler.peak, sampler.held
        found.returncode = process.wait()
        guard.cancel()
        sampler.stop()
    found.seconds = time.perf_counter() - began
    found.data_peak_bytes = sampler.data_peak
    if found.returncode and not enter:
        tail = log.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{arm.name}: the engine ended with {found.returncode}\n{tail}")
    return found


def arms_of(pack: Path, pool_gib: float) -> list[Arm]:
    """The four ways to start."""
    tiers = {"experts": "w2-resident", "pack_dir": str(pack), "pool_gib": pool_gib, "heat": False}
    first = tiers | {"pool_allocation": "first"}
    return [
        Arm("native", "NativeWorker", {}),
        Arm("staged+first", "StagedWorker", first),
        Arm("streamed+first", "StreamedWorker", first),
        Arm("ours", "StreamedWorker", tiers),
    ]


def show(found: Start) -> None:
    """A row of the first table."""
    gib = [found.peaks[name] / GIB for name in ("loaded", "ready", "answered")]
    held = found.held["ready"] / GIB
    print(
        f"{found.arm:<16}{gib[0]:>9.2f}{gib[1]:>9.2f}{gib[2]:>10.2f}{held:>9.2f}"
        f"{gib[1] - held:>9.2f}{found.seconds:>8.1f}",
        flush=True,
    )


def choose_limit(starts: dict[str, Start], measure: Callable[[Start], dict[str, int]]) -> int:
    """Half way between what ours needs to answer and what the others need to be ready."""
    ours = measure(starts["ours"])["answered"]
    others = min(measure(starts[name])["ready"] for name in ("native", "staged+first"))
    return (ours + others) // 2


def limited(
    arms: list[Arm], starts: dict[str, Start], checkpoint: Path, env: dict[str, str],
    options: argparse.Namespace,
) -> tuple[str, list[Start]]:  # fmt: skip
    """Start inside a limit; by which means, and what came of it."""
    means, limit = "control group", choose_limit(starts, lambda s: s.peaks)
    # a group also counts page tables, kernel memory and the pages of files just read
    limiter = control_group
    try:
        with control_group(limit):
            pass
    except OSError as error:
        print(f"no control group can be made ({error.strerror}): RLIMIT_DATA instead")
        means, limiter = "RLIMIT_DATA", data_limit
        limit = choose_limit(
            starts, lambda s: {"answered": s.data_peak_bytes, "ready": s.data_peak_bytes}
        )
    print(f"\nunder {limit / GIB:.2f} GiB ({means})")
    found = []
    for arm in arms:
        if arm.name == "streamed+first":
            continue
        with limiter(limit) as enter:
            one = start(arm, checkpoint, env, options, enter)
        one.limit_bytes = limit
        found.append(one)
        got = list(one.peaks)[-1] if one.peaks else "nothing"
        how = "answers" if one.answered else f"dies after '{got}' ({_ended(one.returncode)})"
        print(f"{one.arm:<16}{how}", flush=True)
    return means, found


def _ended(returncode: int | None) -> str:
    return "killed" if returncode == -9 else f"exit code {returncode}"


def main() -> int:
    """Measure, print tables, print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.0, help="FP4 experts of the checkpoint")
    parser.add_argument("--pool", type=float, default=0.25, help="GiB of the correction pool")
    parser.add_argument("--tokens", type=int, default=256, help="of the prompt, and of a step")
    parser.add_argument("--keep", type=Path, help="a directory for checkpoint, pack and logs")
    options = parser.parse_args()
    options.work = options.keep or Path(tempfile.mkdtemp(prefix="dsctl-load-peak-"))
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        return _measure(options)
    finally:
        if options.keep is None:
            shutil.rmtree(options.work)


def _measure(options: argparse.Namespace) -> int:
    checkpoint = options.work / "checkpoint"
    if not (checkpoint / "model.safetensors.index.json").exists():
        checkpoint.mkdir(exist_ok=True)
        make_checkpoint(checkpoint, options.gib)
    pack = build(checkpoint, options.work, correction=Correction.SPLIT).directory
    site = options.work / "site"
    shutil.rmtree(site, ignore_errors=True)
    paths = (plugin_directory(options.work), ROOT / "runtime", ROOT)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "VLLM_PLUGINS": "dsruntime",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "XDG_CACHE_HOME": str(options.work / "cache"),
    }
    arms = arms_of(pack, options.pool)
    print(
        f"GiB at most:{'loaded':>13}{'ready':>9}{'answered':>10}{'held':>9}{'surplus':>9}{'s':>8}"
    )
    starts = {}
    for arm in arms:
        starts[arm.name] = start(arm, checkpoint, env, options)
        show(starts[arm.name])
    means, inside = limited(arms, starts, checkpoint, env, options)
    met = [one.answered for one in inside] == [False, False, True]
    figures = {
        "fp4_expert_bytes": sum(p.stat().st_size for p in checkpoint.glob("model-0*")),
        "pool_gib": options.pool,
        "starts": [asdict(one) for one in starts.values()],
        "limit": means,
        "limited": [asdict(one) | {"answered": one.answered} for one in inside],
        "met": met,
    }
    print(json.dumps(figures))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
