"""Figures out of samples. Pure.

Definitions (those of llama-benchy where the columns have its names):
- ttfr: request to first chunk, whatever is in it; e2e_ttft: request to first token;
- est_ppt: ttfr less the latency of an empty request: an estimate of prompt processing;
- prefill t/s: prompt tokens that were not cached over est_ppt;
- decode t/s: tokens after the first arrival over the time from first to last arrival; for several
  streams, all of them over the time from the first first token to the last token;
- peak t/s: the most tokens of all streams in any one second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from dsctl.bench.schema import Cell, DraftStats, Round, Sample, Summary
from dsctl.measure.statistics import Spread, quantile


def summarise(cell: Cell) -> Summary:
    """The figures of a cell."""
    rounds = [r for r in cell.rounds if any(_good(r))]
    samples = [s for r in rounds for s in _good(r)]
    gaps = [gap for s in samples for gap in gaps_of(s)]
    energy = [r.power.energy_j for r in rounds if r.power]
    generated = [sum(s.tokens for s in _good(r)) for r in rounds if r.power]
    return Summary(
        prefill_tok_s=_over(rounds, lambda r: prefill_rate(r, _known_cached(cell))),
        decode_tok_s=_over(rounds, decode_rate),
        peak_tok_s=_over(rounds, peak_rate),
        request_tok_s=Spread.of([r for s in samples if (r := sample_rate(s)) is not None]),
        ttfr_s=Spread.of([s.ttfr_s for s in samples if s.ttfr_s is not None]),
        est_ppt_s=Spread.of([est_ppt(s, r.latency_s) for r in rounds for s in _good(r)]),
        ttft_s=Spread.of([s.arrivals[0][0] for s in samples if s.arrivals]),
        total_s=Spread.of([s.total_s for s in samples]),
        gap_p50_s=quantile(gaps, 0.50) if gaps else None,
        gap_p95_s=quantile(gaps, 0.95) if gaps else None,
        gap_p99_s=quantile(gaps, 0.99) if gaps else None,
        joule_per_token=sum(energy) / sum(generated) if sum(generated, 0) else None,
        mean_w=_mean([r.power.mean_w for r in rounds if r.power]),
        draft=merge_drafts([r.draft for r in rounds if r.draft]),
        failures=tuple(sorted({s.failure for r in cell.rounds for s in r.samples if s.failure})),
        doubts=tuple(sorted({s.usage_doubt for s in samples if s.usage_doubt})),
    )


def _good(round_: Round) -> list[Sample]:
    return [s for s in round_.samples if s.failure is None and s.arrivals]


def _over(rounds: Sequence[Round], figure: Callable[[Round], float | None]) -> Spread | None:
    values = [value for r in rounds if (value := figure(r)) is not None]
    return Spread.of(values)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def est_ppt(sample: Sample, latency_s: float) -> float:
    """Estimated time of prompt processing, never below a tenth of a millisecond."""
    return max(1e-4, (sample.ttfr_s or sample.total_s) - latency_s)


def _known_cached(cell: Cell) -> int:
    """Tokens that are cached where the server does not say: a warm cell's context."""
    return cell.depth if cell.cache == "warm" else 0


def prefill_rate(round_: Round, cached: int = 0) -> float | None:
    """New prompt tokens of all streams over the time until the last stream has its first chunk.

    `cached`: tokens of each prompt taken as cached where the server does not report them.
    """
    good = [s for s in _good(round_) if s.prompt_tokens is not None and s.ttfr_s is not None]
    if not good:
        return None
    known = [cached if s.cached_tokens is None else s.cached_tokens for s in good]
    fresh = sum((s.prompt_tokens or 0) - c for s, c in zip(good, known, strict=True))
    begin = min(s.began_s for s in good)
    end = max(s.began_s + (s.ttfr_s or 0.0) for s in good)
    return fresh / max(1e-4, end - begin - round_.latency_s)


def sample_rate(sample: Sample) -> float | None:
    """Decode rate of one stream."""
    if len(sample.arrivals) < 2:
        return None
    (first, count), (last, _) = sample.arrivals[0], sample.arrivals[-1]
    return (sample.tokens - count) / (last - first) if last > first else None


def decode_rate(round_: Round) -> float | None:
    """Decode rate of all streams together."""
    good = _good(round_)
    if len(good) == 1:
        return sample_rate(good[0])
    begin = min(s.began_s + s.arrivals[0][0] for s in good)
    end = max(s.began_s + s.arrivals[-1][0] for s in good)
    tokens = sum(s.tokens for s in good) - good[0].arrivals[0][1]
    return tokens / (end - begin) if end > begin else None


def peak_rate(round_: Round, window_s: float = 1.0) -> float | None:
    """Most tokens in any window; of a shorter stream, its whole rate."""
    events = sorted((s.began_s + t, n) for s in _good(round_) for t, n in s.arrivals)
    if len(events) < 2 or events[-1][0] <= events[0][0]:
        return None
    if events[-1][0] - events[0][0] < window_s:
        return decode_rate(round_)
    best, total, left = 0, 0, 0
    for t, n in events:
        total += n
        while events[left][0] <= t - window_s:
            total -= events[left][1]
            left += 1
        best = max(best, total)
    return best / window_s


def gaps_of(sample: Sample) -> list[float]:
    """Seconds between neighbouring tokens; tokens of one chunk share the gap before it."""
    gaps = []
    for (a, _), (b, n) in pairwise(sample.arrivals):
        gaps += [(b - a) / n] * n
    return gaps


def merge_drafts(stats: Iterable[DraftStats]) -> DraftStats | None:
    """Drafts of several rounds as one, weighted by their number."""
    known = [s for s in stats if s.drafts]
    drafts = sum(s.drafts for s in known)
    if not drafts:
        return None
    tokens, accepted = sum(s.draft_tokens for s in known), sum(s.accepted for s in known)
    longest = max(len(s.per_position) for s in known)
    return DraftStats(
        drafts=drafts,
        draft_tokens=tokens,
        accepted=accepted,
        acceptance_length=1 + accepted / drafts,
        acceptance_rate=accepted / tokens if tokens else 0.0,
        per_position=tuple(
            sum(s.drafts * s.per_position[i] for s in known if i < len(s.per_position)) / drafts
            for i in range(longest)
        ),
    )


def effective_speedup(with_draft: Summary, without: Summary) -> float | None:
    """Decode rate with the draft over the rate without it."""
    a, b = with_draft.decode_tok_s, without.decode_tok_s
    return a.mean / b.mean if a and b and b.mean > 0 else None
