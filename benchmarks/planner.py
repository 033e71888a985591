"""How well the planner reproduces what people measured: a table with the error of each.

The reported runs used an older engine (vLLM 0.24.1 with a fork's expert tiers). Three of its habits
differ from the engine dsctl pins and are switched on here, and only here: one batch in flight while
the KV cache is sized, a row of experts more than there are layers, and quantizing a layer at a time
on the card at a first start.

    python benchmarks/planner.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from dsctl.planning import speed
from dsctl.planning.budget import timeline, weights_of
from dsctl.planning.constants import ACCEPTANCE
from dsctl.planning.demand import Demand
from dsctl.planning.geometry import geometry_of
from dsctl.planning.kvcache import in_flight_tokens, kv_table
from dsctl.planning.units import GIB, gib

MODEL = "deepseek-v4-flash-0731"
#: Usable memory of the reported card.
CARD_BYTES = gib(94.97)

GEOMETRY = geometry_of(None, MODEL)
TABLE = kv_table(MODEL, "0.32.0", "cuda")
#: The validated run: 2-bit base resident, 6 GiB pool allocated first, window 524,288, four
#: sequences, 1,024 batched tokens, utilisation 0.988, planes ready.
VALIDATED = Demand(
    device="cuda",
    ranks=1,
    store="w2-resident",
    max_model_len=524_288,
    max_num_seqs=4,
    max_num_batched_tokens=1024,
    async_scheduling=False,
    gpu_memory_utilization=0.988,
    kv_bytes=None,
    pool_bytes=gib(6),
    pool_first=True,
    base_cache_bytes=0,
    arena_bytes=0,
    mapped_layers=0,
    strict=True,
    draft_tokens=0,
    eager=False,
)


@dataclass(frozen=True)
class Row:
    """One reported number, the planner's, and the error that is allowed (None: for information)."""

    what: str
    reported: float
    planned: float
    unit: str
    allowed: float | None
    absolute: bool = False

    @property
    def error(self) -> float:
        """Relative, or in the row's unit where `absolute`."""
        difference = self.planned - self.reported
        return difference if self.absolute else difference / self.reported

    @property
    def good(self) -> bool:
        """Within what is allowed."""
        return self.allowed is None or abs(self.error) <= self.allowed


def loaded_bytes(demand: Demand) -> int:
    """What "model loading took" counts: weights and a pool that is allocated with them."""
    weights = weights_of(GEOMETRY, demand)
    pool = demand.pool_bytes if demand.pool_first else 0
    return weights.dense + weights.experts + weights.draft + pool


def tokens(kv_bytes: int, window: int, batched: int) -> float:
    """KV capacity as the engine reports it."""
    in_flight = in_flight_tokens(batched, async_scheduling=False)
    return TABLE.capacity(kv_bytes, window, in_flight)[0]


def kv_left(demand: Demand) -> int:
    """The KV cache that utilisation leaves."""
    budget = round(CARD_BYTES * demand.gpu_memory_utilization)
    return timeline(GEOMETRY, demand, TABLE, budget).steady.resident["kv_cache"]


def short_by(demand: Demand) -> float:
    """GiB by which the load peak exceeds the card; negative when it fits."""
    budget = round(CARD_BYTES * demand.gpu_memory_utilization)
    peak = timeline(GEOMETRY, demand, TABLE, budget).peak.peak_bytes
    return (peak - CARD_BYTES) / GIB


def rows() -> list[Row]:
    """All comparisons."""
    seven = replace(VALIDATED, pool_bytes=gib(7), build="layerwise")
    pool = replace(VALIDATED, pool_bytes=gib(6))
    # The fork counts a row of experts for the layer after the last.
    cached = gib(75) // GEOMETRY.w2_expert_bytes / ((GEOMETRY.layers + 1) * GEOMETRY.experts)
    concurrency = tokens(gib(3.89), 524_288, 1024) / 524_288
    pair = replace(
        VALIDATED,
        ranks=2,
        store="native",
        pool_bytes=0,
        draft_tokens=5,
        max_num_batched_tokens=4096,
    )
    return [
        Row("2-bit planes", 72.56, weights_of(GEOMETRY, VALIDATED).experts / GIB, "GiB", 0.01),
        Row("loaded: planes, dense, 6 GiB pool", 87.41, loaded_bytes(VALIDATED) / GIB, "GiB", 0.01),
        Row("slots in 6 GiB", 512, speed.pool_slots(GEOMETRY, pool), "slots", 0.01),
        Row("KV tokens, 3.89 GiB, 524,288", 863_773, tokens(gib(3.89), 524_288, 1024), "tok", 0.03),
        Row("full windows, 3.89 GiB, 524,288", 1.65, concurrency, "x", 0.03),
        Row("KV tokens, 4 GiB, 131,072", 866_000, tokens(gib(4), 131_072, 256), "tok", 0.03),
        Row(
            "KV tokens, 20.11 GiB, 131,072",
            4_354_736,
            tokens(gib(20.11), 131_072, 256),
            "tok",
            0.03,
        ),
        Row("KV cache left at 0.988", 3.89, kv_left(VALIDATED) / GIB, "GiB", None),
        Row("7 GiB pool first, cold: short by", 0.4, short_by(seven), "GiB", 0.3, absolute=True),
        Row("75 GiB base cache covers", 1.01, cached, "of all", 0.01),
        Row("accepted at k=3 (608 of 1,251)", 0.486, ACCEPTANCE[3], "of drafted", 0.01),
        Row("TP2 with draft, per card", 80.97, loaded_bytes(pair) / GIB, "GiB", None),
    ]


def facts() -> dict[str, bool]:
    """What must hold besides the numbers."""
    seven = replace(VALIDATED, pool_bytes=gib(7), build="layerwise", pool_first=False)
    return {
        "the 7 GiB pool fits when it is allocated last": short_by(seven) < 0,
        "the 6 GiB pool of the report fits allocated first": short_by(VALIDATED) < 0,
    }


def main() -> int:
    """Print the table and one JSON object; 1 when an error is larger than allowed."""
    table = rows()
    print(f"{'what':<36}{'reported':>12}{'planned':>12}  {'unit':<11}{'error':>9}  allowed")
    for row in table:
        error = f"{row.error:+.2f} {row.unit}" if row.absolute else f"{row.error:+.2%}"
        allowed = "for information" if row.allowed is None else f"{row.allowed:g}"
        if row.allowed is not None and not row.absolute:
            allowed = f"{row.allowed:.0%}"
        mark = "" if row.good else "  TOO FAR"
        number: Callable[[float], str] = lambda x: f"{x:,.0f}" if x >= 1000 else f"{x:.4g}"  # noqa: E731
        print(
            f"{row.what:<36}{number(row.reported):>12}{number(row.planned):>12}  {row.unit:<11}"
            f"{error:>9}  {allowed}{mark}"
        )
    held = facts()
    for what, holds in held.items():
        print(f"{'yes' if holds else 'NO':<4}{what}")
    good = all(row.good for row in table) and all(held.values())
    figures = {
        row.what: {"reported": row.reported, "planned": row.planned, "error": row.error}
        for row in table
    }
    print(json.dumps({"benchmark": "planner", "good": good, "rows": figures, "facts": held}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
