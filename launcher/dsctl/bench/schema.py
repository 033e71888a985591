"""What a benchmark asks for and what it found. Frozen values, stored as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsctl.measure.conditions import Conditions
from dsctl.measure.statistics import Spread
from dsctl.model.base import Value

BENCH_VERSION = 1
CacheMode = Literal["cold", "warm"]


class Spec(Value):
    """What is measured. Defaults as llama-benchy's: pp2048, tg32, depth 0, one stream, 3 runs.

    `prefill`, `decode`: tokens read and generated. `depths`: tokens of context before them.
    `caches`: `cold` makes every prompt new; `warm` sends the context once before and measures with
    it in the prefix cache.
    """

    prefill: tuple[int, ...] = (2048,)
    decode: tuple[int, ...] = (32,)
    depths: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    caches: tuple[CacheMode, ...] = ("cold",)
    runs: int = Field(default=3, ge=1)
    corpus: Literal["diverse", "filler"] = "diverse"
    seed: int = 0
    exact: bool = True


class Sample(Value):
    """One measured request. Times in seconds; `began_s` on the clock of its round.

    `arrivals`: (time after the request, tokens) of every chunk.
    """

    began_s: float
    ttfr_s: float | None
    total_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    tokens: int
    arrivals: tuple[tuple[float, int], ...]
    usage_doubt: str | None = None
    failure: str | None = None


class Power(Value):
    """GPU power over a round: mean draw of all GPUs together, and energy."""

    mean_w: float
    energy_j: float


class DraftStats(Value):
    """What the engine says about its draft during a round.

    `acceptance_length`: tokens an engine step yields on average, 1 + accepted / drafts;
    `per_position`: share of drafts accepted at least to that position.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    acceptance_length: float
    acceptance_rate: float
    per_position: tuple[float, ...]


class Round(Value):
    """One run of a cell: `concurrency` requests at once. `latency_s`: an empty request's time."""

    samples: tuple[Sample, ...]
    latency_s: float
    power: Power | None = None
    draft: DraftStats | None = None


class Cell(Value):
    """One point of the grid with all its rounds."""

    prefill: int
    decode: int
    depth: int
    concurrency: int
    cache: CacheMode
    rounds: tuple[Round, ...]
    skipped: str | None = None

    @property
    def key(self) -> tuple[int, int, int, int, str]:
        """Its place in the grid."""
        return self.prefill, self.decode, self.depth, self.concurrency, self.cache


class BenchResult(Value):
    """A benchmark as it is stored: comparable, or refused, by `spec` and `conditions`."""

    version: int = BENCH_VERSION
    kind: Literal["bench"] = "bench"
    created: float
    command: str
    conditions: Conditions
    spec: Spec
    token_counts: Literal["server", "estimate"]
    cells: tuple[Cell, ...]


class Summary(Value):
    """Figures of a cell over its rounds. Rates in tok/s, times in seconds; None: not measured."""

    prefill_tok_s: Spread | None
    decode_tok_s: Spread | None
    peak_tok_s: Spread | None
    request_tok_s: Spread | None
    ttfr_s: Spread | None
    est_ppt_s: Spread | None
    ttft_s: Spread | None
    total_s: Spread | None
    gap_p50_s: float | None
    gap_p95_s: float | None
    gap_p99_s: float | None
    joule_per_token: float | None
    mean_w: float | None
    draft: DraftStats | None
    failures: tuple[str, ...]
    doubts: tuple[str, ...]
