"""Prefill attention on the CPU: the runtime's operator beside the naive gather, and what it costs.

Both read the same FP8 pages and give the same result (checked here). Runs in the engine's
environment:

    PYTHONPATH=runtime:. python benchmarks/cpu_attention.py [--tokens 2300] [--heads 4]

Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsruntime.cpu.ops import attention, pages
from tests.runtime.support.naive_attention import gather_attention

WINDOW = 128
PAGE = 64


@dataclass(frozen=True)
class Case:
    """One kind of layer: its compression ratio (0: window only) and how many entries it keeps."""

    name: str
    ratio: int
    topk: int


CASES = (Case("window", 0, 0), Case("ratio 4", 4, 512), Case("ratio 128", 128, 32))


def cache_of(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages that hold ``rows`` random rows, and their slots in order of position."""
    blocks = -(-rows // PAGE)
    cache = torch.zeros(blocks, PAGE * 584, dtype=torch.uint8)
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed))
    slots = (order[:, None] * PAGE + torch.arange(PAGE)).reshape(-1)[:rows]
    generator = torch.Generator().manual_seed(seed)
    pages.store_latents(cache, PAGE, slots, torch.randn(rows, 512, generator=generator))
    return cache, slots


def arguments(case: Case, tokens: int, heads: int) -> tuple[object, ...]:
    """What vLLM passes for a prompt of ``tokens`` from position 0."""
    position = torch.arange(tokens)
    window_cache, window_at = cache_of(tokens, seed=0)
    local = position[:, None] - WINDOW + 1 + torch.arange(WINDOW)
    window = torch.where(local >= 0, window_at[local.clamp(min=0)], -1)
    cache, entries = window_cache, torch.empty(tokens, 0, dtype=torch.int64)
    if case.ratio:
        count = tokens // case.ratio
        cache, at = cache_of(max(count, 1), seed=1)
        known = (position + 1) // case.ratio
        scores = torch.rand(tokens, count, generator=torch.Generator().manual_seed(2))
        scores.masked_fill_(torch.arange(count) >= known[:, None], -1.0)
        best = scores.topk(min(case.topk, count), dim=1)
        entries = torch.where(best.values >= 0, at[best.indices], -1)
    q = torch.randn(tokens, heads, 512, generator=torch.Generator().manual_seed(3))
    sink = torch.zeros(heads)
    return (
        q.to(torch.bfloat16), window_cache, window, PAGE, cache, entries, PAGE, sink, 512**-0.5,
    )  # fmt: skip


def timed(
    function: Callable[..., None], given: tuple[object, ...], rounds: int
) -> tuple[float, torch.Tensor]:
    """Seconds of the best of ``rounds``, and the output."""
    q = given[0]
    assert isinstance(q, torch.Tensor)
    out = torch.empty_like(q)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        function(out, *given)
        best = min(best, time.perf_counter() - start)
    return best, out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2300)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    figures = []
    print(f"{options.tokens} tokens, {options.heads} heads, {options.threads} thread(s)")
    print(f"{'layer':<12}{'naive gather':>14}{'this runtime':>14}{'speed-up':>10}{'max diff':>10}")
    for case in CASES:
        given = arguments(case, options.tokens, options.heads)
        naive_s, want = timed(gather_attention, given, options.rounds)
        ours_s, got = timed(attention.flash_mla_with_kvcache_cpu, given, options.rounds)
        difference = float((want.float() - got.float()).abs().max())
        assert difference < 0.02, f"{case.name}: outputs differ by {difference}"
        print(
            f"{case.name:<12}{naive_s * 1e3:>11.1f} ms{ours_s * 1e3:>11.1f} ms"
            f"{naive_s / ours_s:>9.1f}x{difference:>10.4f}"
        )
        figures.append(
            {
                "layer": case.name,
                "naive_s": naive_s,
                "ours_s": ours_s,
                "speedup": naive_s / ours_s,
                "max_difference": difference,
            }
        )
    naive, ours = (sum(f[key] for f in figures) for key in ("naive_s", "ours_s"))  # type: ignore[misc]
    print(f"{'together':<12}{naive * 1e3:>11.1f} ms{ours * 1e3:>11.1f} ms{naive / ours:>9.1f}x")
    print(
        json.dumps(
            {
                "tokens": options.tokens,
                "heads": options.heads,
                "threads": options.threads,
                "layers": figures,
                "speedup": naive / ours,
            }
        )
    )


if __name__ == "__main__":
    main()
