"""Results as Markdown (the columns that people paste), CSV and plain lines. Pure."""

from __future__ import annotations

import csv
import io

from dsctl.bench.figures import summarise
from dsctl.bench.schema import BenchResult, Cell, Summary
from dsctl.measure.statistics import Spread

HEADINGS = ("model", "test", "t/s", "peak t/s", "ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)")
_CSV = (
    "model prefill decode depth concurrency cache round stream prompt_tokens cached_tokens tokens "
    "ttfr_s ttft_s total_s failure"
)


def test_names(cell: Cell) -> tuple[str, str]:
    """Names of a cell's prefill and decode test: `pp2048 @ d4096 (c4)`, ..."""
    suffix = f" @ d{cell.depth}" if cell.depth else ""
    suffix += f" (c{cell.concurrency})" if cell.concurrency > 1 else ""
    suffix += " warm" if cell.cache == "warm" else ""
    return f"pp{cell.prefill}{suffix}", f"tg{cell.decode}{suffix}"


def shown(spread: Spread | None, scale: float = 1.0) -> str:
    """`mean ± sd`, or nothing."""
    return "" if spread is None else f"{spread.mean * scale:.2f} ± {spread.sd * scale:.2f}"


def rows(result: BenchResult) -> list[tuple[str, ...]]:
    """Two rows for each measured cell, in the order of the columns."""
    found: list[tuple[str, ...]] = []
    for cell in result.cells:
        if cell.skipped:
            continue
        s = summarise(cell)
        prefill, decode = test_names(cell)
        times = (shown(s.ttfr_s, 1000), shown(s.est_ppt_s, 1000), shown(s.ttft_s, 1000))
        name = result.conditions.model
        found.append((name, prefill, shown(s.prefill_tok_s), "", *times))
        found.append((name, decode, shown(s.decode_tok_s), shown(s.peak_tok_s), "", "", ""))
    return found


def markdown(result: BenchResult) -> str:
    """The table, then what it does not hold: percentiles, draft, power, doubts."""
    lines = [_line(HEADINGS), "| :-- | :-- | --: | --: | --: | --: | --: |"]
    lines += [_line(row) for row in rows(result)]
    lines.append("")
    lines += [f"- {text}" for text in remarks(result)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def remarks(result: BenchResult) -> list[str]:
    """What a reader must know beside the table."""
    said = []
    for cell in result.cells:
        name = test_names(cell)[1]
        if cell.skipped:
            said.append(f"{name}: not measured, {cell.skipped}")
            continue
        said += [f"{name}: {text}" for text in _details(summarise(cell))]
    c, spec = result.conditions, result.spec
    said.append(
        f"{spec.runs} runs, corpus {spec.corpus} (seed {spec.seed}), tokens counted by the "
        f"{'server' if result.token_counts == 'server' else 'client, estimated'}"
    )
    parts = [("profile", c.profile), ("engine", c.engine_version), ("image", c.image_digest)]
    known = ", ".join(f"{what} {value}" for what, value in parts if value)
    said.append(f"dsctl {c.dsctl_version}{', ' + known if known else ''}")
    return said


def _details(s: Summary) -> list[str]:
    said = []
    if s.gap_p50_s is not None and s.gap_p95_s is not None and s.gap_p99_s is not None:
        gaps = (s.gap_p50_s, s.gap_p95_s, s.gap_p99_s)
        said.append("inter-token ms p50/p95/p99 " + "/".join(f"{g * 1000:.2f}" for g in gaps))
    if s.draft is not None:
        positions = " ".join(f"{share:.2f}" for share in s.draft.per_position)
        said.append(
            f"draft: {s.draft.acceptance_length:.2f} tokens per step, "
            f"{s.draft.acceptance_rate:.1%} accepted, by position {positions or '–'}"
        )
    if s.mean_w is not None and s.joule_per_token is not None:
        said.append(f"{s.mean_w:.0f} W, {s.joule_per_token:.2f} J per generated token")
    said += [f"failed requests: {failure}" for failure in s.failures]
    said += [f"usage not believed: {doubt}" for doubt in s.doubts]
    return said


def csv_text(result: BenchResult) -> str:
    """One line for each round of each cell, all figures, for a spreadsheet."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV.split())
    for cell in result.cells:
        for number, round_ in enumerate(cell.rounds, start=1):
            for stream, s in enumerate(round_.samples, start=1):
                ttft = s.arrivals[0][0] if s.arrivals else ""
                counts = (s.prompt_tokens, s.cached_tokens, s.tokens)
                times = (s.ttfr_s, ttft, s.total_s)
                place = (result.conditions.model, *cell.key, number, stream)
                writer.writerow([*place, *counts, *times, s.failure or ""])
    return buffer.getvalue()
