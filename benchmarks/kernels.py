"""Routed experts in a decode step: on a card beside a plain copy, on the CPU beside obvious torch.

On a CUDA device: bytes of planes read a second by one layer's four launches, replayed from a CUDA
graph with fresh routing each time, over the bandwidth of a copy measured in the same run (goal:
0.8 or more). Without one: what the compiler makes of the kernels for sm_120 and nothing that only
a card can tell; ``"device": null``. On the CPU: one expert, few tokens, multiplied as codes
(`dsruntime.tiers.product`), beside the obvious way (look the codes up into a matrix, multiply by
it) and beside the way that the runtime takes for many tokens. Results are compared before times
are. Runs in the engine's environment:

    PYTHONPATH=runtime:. python benchmarks/kernels.py [--tokens 1 2 4] [--sweep] [--no-compile]

Prints tables; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from dsruntime.codec import fp4
from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.kernels.aot import bits_per_weight, build_all, compiler_version
from dsruntime.kernels.launch import DECODE, Planes, Tile, Tiles
from dsruntime.kernels.report import compiled_table, read_table
from dsruntime.tiers.decode import base_into, fp4_into
from dsruntime.tiers.product import base_product, fp4_product

EXPERTS, TOPK, LIMIT = 256, 6, 10.0
SWEEP = (
    DECODE,
    Tile(rows=32, tokens=8, words=16, warps=2, stages=3),
    Tile(rows=32, tokens=8, words=16, warps=2, stages=5),
    Tile(rows=64, tokens=8, words=16, warps=4, stages=5),
    Tile(rows=128, tokens=8, words=16, warps=8, stages=3),
)
"""Decode tiles worth a try on a card: the default was chosen without one."""
SHAPES = {"TP 1": ExpertShape(4096, 2048), "TP 2": ExpertShape(4096, 1024)}
COPY_BYTES = 1 << 30
ROUNDS = 30


def best_of(run: Callable[[], Any], rounds: int = 5) -> float:
    """Seconds of the fastest of some runs."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def on_the_cpu(tokens: Sequence[int]) -> list[dict[str, Any]]:
    """w13 of one expert of the real size, in both tiers."""
    random = np.random.default_rng(0)
    n, k = 2 * 2048, 4096
    codes = random.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = random.integers(116, 123, (n, k // 32), dtype=np.uint8)
    base = fp4.encode_base(codes)
    quads = torch.from_numpy(
        fp4.BASE_LEVELS[fp4.unpack_base(np.arange(256, dtype=np.uint8)[:, None])]
    )
    pairs = torch.from_numpy(fp4.E2M1[fp4.unpack_nibbles(np.arange(256, dtype=np.uint8)[:, None])])
    units = torch.from_numpy(fp4.scale_values(scales).astype(np.float32))

    def obvious(x: torch.Tensor, table: torch.Tensor, packed: np.ndarray[Any, Any]) -> torch.Tensor:
        matrix = table[torch.from_numpy(packed).int()].view(n, k // 32, 32) * units[..., None]
        return linear(x, matrix.view(n, k))

    figures = []
    scratch = torch.empty(n, k)
    for tier, packed, table, product, decode in (
        ("2 bits", base, quads, base_product, base_into),
        ("FP4", codes, pairs, fp4_product, fp4_into),
    ):
        for count in tokens:
            x = torch.randn(count, k, generator=torch.Generator().manual_seed(count))
            want, got = obvious(x, table, packed), product(x, packed, scales)
            difference = float((want - got).norm() / want.norm())
            assert difference < 1e-5, f"{tier}, {count} tokens: {difference}"
            ours = best_of(lambda x=x, p=packed, f=product: f(x, p, scales))
            torch_s = best_of(lambda x=x, p=packed, t=table: obvious(x, t, p), 2)
            by_matrix = best_of(lambda x=x, p=packed, d=decode: linear(x, d(p, scales, scratch)), 3)
            figures.append(
                {
                    "tier": tier,
                    "tokens": count,
                    "ours_s": ours,
                    "prefill_path_s": by_matrix,
                    "torch_s": torch_s,
                    "speedup": torch_s / ours,
                    "bytes_read_per_weight": (packed.nbytes + scales.nbytes) / (n * k),
                    "weights_per_s": n * k / ours,
                }
            )
    return figures


def tile_name(tile: Tile) -> str:
    """Rows, words, warps, stages."""
    return f"{tile.rows}x{tile.words}x{tile.warps}x{tile.stages}"


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second by a copy on the device."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / device_seconds(lambda: target.copy_(source))


def device_seconds(run: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Median seconds on the device; `before` each run is not counted."""
    times = []
    for _ in range(ROUNDS):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def on_the_device(
    device: torch.device, tokens: Sequence[int], tiles: Sequence[Tile]
) -> dict[str, Any]:
    """One layer's decode step, by ranks, tier, tile and tokens."""
    from dsruntime.kernels.moe import LayerPlanes, Workspace, moe

    copy = copy_bandwidth(device)
    figures = []
    for ranks, shape in SHAPES.items():
        for coding in (None, Correction.SPLIT, Correction.PLAIN):
            planes = Planes(shape, coding or Correction.SPLIT)

            def noise(rows: int, size: int) -> torch.Tensor:
                return torch.randint(100, 126, (rows, size), dtype=torch.uint8, device=device)

            base = noise(EXPERTS, planes.base.size_bytes)
            memory = noise(EXPERTS if coding else 1, planes.slot.size_bytes)
            everyone = torch.arange(EXPERTS, dtype=torch.int32, device=device)
            layer = LayerPlanes(
                planes, base, everyone, everyone if coding else torch.full_like(everyone, -1),
                torch.zeros_like(everyone),
                torch.tensor([memory.data_ptr()], device=device),
            )  # fmt: skip
            for tile, count in itertools.product(tiles, tokens):
                work = Workspace(
                    planes, EXPERTS, TOPK, count, torch.bfloat16, device, Tiles(decode=tile)
                )
                x = torch.randn(count, shape.hidden, dtype=torch.bfloat16, device=device)
                ids = torch.empty(count, TOPK, dtype=torch.int32, device=device)
                weights = torch.rand(count, TOPK, device=device)
                used: list[int] = []

                def draw(ids: torch.Tensor = ids, used: list[int] = used) -> None:
                    drawn = torch.rand(len(ids), EXPERTS).topk(TOPK).indices.int()
                    used.append(len(drawn.unique()))
                    ids.copy_(drawn)

                draw()
                moe(x, weights, ids, layer, LIMIT, work)  # compiles
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    moe(x, weights, ids, layer, LIMIT, work)
                seconds = device_seconds(graph.replay, draw)
                weight_bytes = bits_per_weight(shape, coding) / 8
                size = statistics.mean(used) * 3 * shape.hidden * shape.intermediate * weight_bytes
                figures.append(
                    {
                        "ranks": ranks,
                        "tier": str(coding or "2 bits"),
                        "tokens": count,
                        "tile": tile_name(tile),
                        "seconds": seconds,
                        "bytes_read": size,
                        "share_of_copy": size / seconds / copy,
                    }
                )
    return {
        "device": torch.cuda.get_device_name(device),
        "copy_bytes_per_s": copy,
        "decode": figures,
        "least_share_of_copy": min(
            figure["share_of_copy"] for figure in figures if figure["tile"] == tile_name(DECODE)
        ),
    }


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of figures."""
    print(f"\n{title}")
    print("".join(f"{name:>24}" for name in rows[0]))
    for row in rows:
        print(
            "".join(f"{v:>24.4g}" if isinstance(v, float) else f"{v!s:>24}" for v in row.values())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    parser.add_argument("--sweep", action="store_true", help="on a card: other decode tiles, too")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiler's table out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    result: dict[str, Any] = {"device": None, "threads": options.threads}
    if torch.cuda.is_available():
        result |= on_the_device(
            torch.device("cuda"), options.tokens, SWEEP if options.sweep else SWEEP[:1]
        )
        show(f"{result['device']}: one layer, decode", result["decode"])
    else:
        print("no CUDA device: nothing is measured on one")
    if not options.no_compile:
        built = build_all()
        print("\n" + compiled_table(built, compiler_version()) + "\n\n" + read_table())
        result["compiled"] = {
            "triton": compiler_version(),
            "target": "sm_120",
            "kernels": [asdict(each) for each in built],
        }
    result["cpu"] = on_the_cpu([count for count in options.tokens if count <= 4] or [1])
    show("CPU: w13 of one expert (16.8 M weights)", result["cpu"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
