"""Charts of results: SVG and PNG. matplotlib is imported when a chart is drawn."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.bench.figures import gaps_of, summarise
from dsctl.bench.schema import BenchResult, Cell, Summary
from dsctl.errors import ConfigError
from dsctl.files import read_text
from dsctl.measure.statistics import Spread, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Named = Sequence[tuple[str, BenchResult]]

#: Okabe and Ito's colours: told apart with any colour vision, in print, on light and dark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#808080"


def plot_all(results: Named, out: Path, plan: Path | None = None) -> list[Path]:
    """Every chart that the results have data for, as SVG and PNG in `out`.

    Raises:
        ConfigError: matplotlib is missing, or nothing can be drawn.
    """
    figures = charts(results, plan)
    if not figures:
        raise ConfigError("there is nothing to draw", remedy="measure something first")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        for kind in ("svg", "png"):
            path = out / f"{name}.{kind}"
            figure.savefig(path, dpi=160, bbox_inches="tight")
            written.append(path)
    return written


def charts(results: Named, plan: Path | None = None) -> dict[str, Figure]:
    """Charts by name; one without data is left out."""
    makers: dict[str, Callable[[Axes, Named], bool]] = {
        "decode-over-context": _decode,
        "prefill-over-depth": _prefill,
        "concurrency": _concurrency,
        "latency": _latency,
    }
    found = {}
    for name, maker in makers.items():
        figure, axes = _figure()
        if maker(axes, results):
            _finish(axes, len(results))
            found[name] = figure
    if plan is not None:
        figure, axes = _figure(height=1.8)
        try:
            _memory(axes, json.loads(read_text(plan)))
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"--plan {plan} is not a plan",
                remedy="`dsctl plan --profile P --format json > FILE`",
            ) from None
        found["memory"] = figure
    return found


def svg_of(figure: Figure) -> str:
    """The chart as an SVG element that takes its text colour from the page around it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(height: float = 3.4) -> tuple[Figure, Axes]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as MplFigure
    except ImportError:
        raise ConfigError("charts need matplotlib", remedy="pip install 'dsctl[charts]'") from None
    with rc_context({"svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}):
        figure = MplFigure(figsize=(6.4, height), layout="constrained")
        axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(_GREY)
    axes.tick_params(colors=_GREY)
    axes.grid(True, color=_GREY, alpha=0.2, linewidth=0.6)
    return figure, axes


def _finish(axes: Axes, count: int) -> None:
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(_GREY)
    if axes.get_legend_handles_labels()[1]:
        legend = axes.legend(frameon=False, fontsize=8)
        for entry in legend.get_texts():
            entry.set_color(_GREY)


def _cells(result: BenchResult, cache: str = "cold") -> list[tuple[Cell, Summary]]:
    return [(c, summarise(c)) for c in result.cells if c.rounds and c.cache == cache]


def _band(axes: Axes, xs: list[int], spreads: list[Spread], name: str, colour: str) -> None:
    """Mean with the 95 % confidence band of the mean (1.96 sd / sqrt n)."""
    means = [s.mean for s in spreads]
    halves = [1.96 * s.sd / s.n**0.5 for s in spreads]
    axes.plot(xs, means, marker="o", markersize=4, color=colour, label=name)
    low = [m - h for m, h in zip(means, halves, strict=True)]
    high = [m + h for m, h in zip(means, halves, strict=True)]
    axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)


def _over_depth(axes: Axes, results: Named, figure: str, title: str) -> bool:
    drawn = False
    for (name, result), colour in zip(results, COLOURS, strict=False):
        points: dict[int, Spread] = {}
        for cell, summary in _cells(result):
            value = getattr(summary, figure)
            if cell.concurrency == 1 and value is not None:
                points.setdefault(cell.depth + cell.prefill, value)
        if points:
            xs = sorted(points)
            _band(axes, xs, [points[x] for x in xs], name, colour)
            drawn = True
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("tok/s")
    axes.set_title(title, loc="left")
    axes.set_ylim(bottom=0)
    return drawn


def _decode(axes: Axes, results: Named) -> bool:
    return _over_depth(axes, results, "decode_tok_s", "Decode over context, one stream")


def _prefill(axes: Axes, results: Named) -> bool:
    return _over_depth(axes, results, "prefill_tok_s", "Prefill over depth, one stream")


def _concurrency(axes: Axes, results: Named) -> bool:
    drawn = False
    for (name, result), colour in zip(results, COLOURS, strict=False):
        points: dict[int, Spread] = {}
        for cell, summary in _cells(result):
            if summary.decode_tok_s is not None:
                points.setdefault(cell.concurrency, summary.decode_tok_s)
        if len(points) > 1:
            xs = sorted(points)
            _band(axes, xs, [points[x] for x in xs], name, colour)
            axes.set_xticks(xs)
            drawn = True
    axes.set_xlabel("streams at once")
    axes.set_ylabel("tok/s, all streams")
    axes.set_title("Decode over concurrency", loc="left")
    axes.set_ylim(bottom=0)
    return drawn


def _latency(axes: Axes, results: Named) -> bool:
    drawn = False
    for (name, result), colour in zip(results, COLOURS, strict=False):
        gaps = [
            gap * 1000
            for cell in result.cells
            if cell.concurrency == 1
            for round_ in cell.rounds
            for sample in round_.samples
            for gap in gaps_of(sample)
        ]
        if not gaps:
            continue
        ordered = sorted(gaps)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step(ordered, shares, where="post", color=colour, label=name)
        axes.axvline(quantile(ordered, 0.95), color=colour, linestyle=":", linewidth=1)
        axes.set_xlim(0, quantile(ordered, 0.99) * 1.3 + 0.1)
        drawn = True
    axes.set_xlabel("ms between tokens (dotted: p95)")
    axes.set_ylabel("share of tokens")
    axes.set_title("Inter-token latency, one stream", loc="left")
    return drawn


def _memory(axes: Axes, plan: dict[str, Any]) -> None:
    """Solid: weights; hatched: KV cache; light: the rest; one bar for each GPU (else the host)."""
    gpus = plan.get("gpus") or []
    bars = [(f"GPU {g['index']}", g["components"], g["capacity_bytes"]) for g in gpus]
    if not bars:
        host = plan["host"]
        bars = [("host", host.get("components", {}), host["available_bytes"])]
    kinds = ("weights", "KV cache", "other")
    for row, (_, components, capacity) in enumerate(bars):
        parts = dict.fromkeys(kinds, 0.0)
        for name, size in components.items():
            parts[_kind(name)] += size / 2**30
        left = 0.0
        for kind, colour, hatch in zip(kinds, COLOURS, ("", "///", ""), strict=False):
            label = kind if row == 0 else None
            axes.barh(row, parts[kind], left=left, color=colour, hatch=hatch, label=label)
            left += parts[kind]
        axes.plot([capacity / 2**30] * 2, [row - 0.45, row + 0.45], color=_GREY, linewidth=2)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set_xlabel("GiB (line: what there is)")
    axes.set_title("Memory: weights and KV cache", loc="left")
    _finish(axes, len(bars))


def _kind(component: str) -> str:
    if component == "kv_cache":
        return "KV cache"
    weights = ("weights", "planes", "expert", "pool")
    return "weights" if any(word in component for word in weights) else "other"
