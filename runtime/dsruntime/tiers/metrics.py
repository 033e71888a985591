"""What the tiers do, on vLLM's own ``/metrics``.

The counters live in the workers, the endpoint in the API server: other processes, and vLLM has no
way for a worker's own figures to travel. So each worker keeps its figures in a small file of
64-bit floats that it has mapped, one store instruction a figure, and the API server reads the files
when it is scraped. Nothing is sent, nothing waits, and a scrape sees the state after the last step.
The directory is made by the process that settles the configuration and named to those it starts in
their environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dsruntime.tiers.snapshot import BaseSnapshot

DIRECTORY = "DSRUNTIME_METRICS_DIR"
"""Names the directory in the environment."""


@dataclass(frozen=True)
class PoolSnapshot:
    """The correction pool; what only grows first.

    ``uses`` are (token, expert) pairs, ``hits`` those whose expert was corrected.
    """

    uses: int = 0
    hits: int = 0
    promotions: int = 0
    evictions: int = 0
    failures: int = 0
    moved_bytes: int = 0
    slots: int = 0
    corrected: int = 0
    loading: int = 0
    experts: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment."""

    pool: PoolSnapshot
    base: BaseSnapshot


@dataclass(frozen=True)
class Metric:
    """One figure. Counters are named without ``_total``, which the exposition adds."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    value: Callable[[Snapshot], float]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _counter(name: str, text: str, value: Callable[[Snapshot], float]) -> Metric:
    return Metric(f"dsruntime_{name}", "counter", text, value)


def _gauge(name: str, text: str, value: Callable[[Snapshot], float]) -> Metric:
    return Metric(f"dsruntime_{name}", "gauge", text, value)


METRICS = (
    _counter(
        "expert_uses",
        "Pairs of a token and an expert it was routed to.",
        lambda s: s.pool.uses,
    ),
    _counter("pool_hits", "Expert uses that found the expert corrected.", lambda s: s.pool.hits),
    _gauge(
        "pool_hit_ratio",
        "Share of expert uses since the start whose expert was corrected.",
        lambda s: _share(s.pool.hits, s.pool.uses),
    ),
    _counter(
        "pool_promotions",
        "Corrections brought into the pool and made visible.",
        lambda s: s.pool.promotions,
    ),
    _counter(
        "pool_evictions",
        "Corrections that gave up their slot.",
        lambda s: s.pool.evictions,
    ),
    _counter(
        "pool_failures",
        "Corrections that could not be read; their experts stay at 2 bits.",
        lambda s: s.pool.failures,
    ),
    _counter("pool_moved_bytes", "Bytes of corrections moved.", lambda s: s.pool.moved_bytes),
    _gauge("pool_slots", "Slots of the correction pool.", lambda s: s.pool.slots),
    _gauge("pool_corrected_experts", "Experts corrected now.", lambda s: s.pool.corrected),
    _gauge("pool_loading_experts", "Experts whose correction is on its way.",
           lambda s: s.pool.loading),
    _gauge(
        "pool_coverage_ratio",
        "Share of all experts that are corrected now.",
        lambda s: _share(s.pool.corrected, s.pool.experts),
    ),
    _counter(
        "decode_steps",
        "Decode steps over a base cache.",
        lambda s: s.base.decode_steps,
    ),
    _counter(
        "replayed_steps",
        "Decode steps that missed an expert's base and were run again.",
        lambda s: s.base.replayed_steps,
    ),
    _counter(
        "replays",
        "Passes beyond a step's first.",
        lambda s: s.base.replays,
    ),
    _gauge(
        "replays_per_step",
        "Passes beyond the first, per decode step since the start.",
        lambda s: _share(s.base.replays, s.base.decode_steps),
    ),
    _gauge(
        "base_coverage_ratio",
        "Share of decode steps since the start that missed no base in their first pass.",
        lambda s: 1 - _share(s.base.replayed_steps, s.base.decode_steps),
    ),
    _counter(
        "rescued_steps",
        "Decode steps whose experts did not fit the cache and that ran layer by layer.",
        lambda s: s.base.rescues,
    ),
    _counter("base_misses", "Base rows that a decode pass asked for in vain.",
             lambda s: s.base.misses),
    _counter("base_moved_bytes", "Bytes of base rows brought to the device.",
             lambda s: s.base.moved_bytes),
    _gauge("base_slots", "Slots of the base cache.", lambda s: s.base.slots),
    _counter("arena_hits", "Base rows found in the host arena.", lambda s: s.base.arena_hits),
    _counter("arena_misses", "Base rows that had to be read from the pack.",
             lambda s: s.base.arena_misses),
    _gauge("arena_rows", "Rows that the host arena holds.", lambda s: s.base.arena_rows),
    _counter("pack_read_bytes", "Bytes of base rows read from the pack.",
             lambda s: s.base.pack_bytes),
    _counter(
        "degraded_steps",
        "Approximate decode steps that went without some expert.",
        lambda s: s.base.degraded_steps,
    ),
    _counter(
        "left_out_experts",
        "Experts that approximate decode steps went without.",
        lambda s: s.base.left_out,
    ),
    _counter(
        "unreadable_experts",
        "Experts that a step needed and that could not be read.",
        lambda s: s.base.unreadable,
    ),
    _counter("failed_requests", "Requests ended because an expert could not be read.",
             lambda s: s.base.failed_requests),
    _counter("gate_checks", "Decode steps that the confidence gate looked at.",
             lambda s: s.base.gate_checks),
    _counter("gate_fires", "Decode steps that it found unsure.", lambda s: s.base.gate_fires),
    _counter("gate_redone_steps", "Decode steps redone with their experts corrected.",
             lambda s: s.base.gate_redone),
    _counter("gate_corrections", "Corrections brought in for that.",
             lambda s: s.base.gate_corrections),
    _counter("gate_refused", "Unsure steps not redone, their share being used up.",
             lambda s: s.base.gate_refused),
    _gauge("mapped_layers", "Layers whose base is read from the mapped pack.",
           lambda s: s.base.mapped_layers),
)  # fmt: skip


class Board:
    """One rank's figures, in a mapped file; for the worker."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Makes the file anew.

        Raises:
            OSError: the directory cannot be written.
        """
        self._figures = np.memmap(
            directory / f"rank-{rank}.f64", np.float64, mode="w+", shape=(len(METRICS),)
        )

    def show(self, snapshot: Snapshot) -> None:
        """Replace all figures."""
        for number, metric in enumerate(METRICS):
            self._figures[number] = metric.value(snapshot)


def board_for(rank: int) -> Board | None:
    """The board of this process; None: nobody serves metrics, or nothing can be written."""
    directory = os.environ.get(DIRECTORY)
    try:
        return Board(Path(directory), rank) if directory else None
    except OSError:
        return None


class Collector:
    """Reads all boards when Prometheus asks; for the process with the endpoint."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Any]:
        """A family a metric, labelled by rank."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        boards = {
            path.stem.removeprefix("rank-"): np.fromfile(path, np.float64)
            for path in sorted(self._directory.glob("rank-*.f64"))
        }
        whole = {rank: found for rank, found in boards.items() if len(found) == len(METRICS)}
        for number, metric in enumerate(METRICS):
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            shown = family(metric.name, metric.text, labels=["rank"])
            for rank, figures in whole.items():
                shown.add_metric([rank], float(figures[number]))
            yield shown


def serve() -> None:
    """Have this process's endpoint show the boards of the workers it will start. Idempotent.

    With several API servers (``--api-server-count``) vLLM's endpoint gathers its own metrics from
    files and knows nothing of a process's registry: ours are not on it then.
    """
    if DIRECTORY in os.environ:
        return
    from prometheus_client import REGISTRY

    made = tempfile.mkdtemp(prefix="dsruntime-metrics-")
    os.environ[DIRECTORY] = made
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    REGISTRY.register(Collector(Path(made)))
