"""Draws a plan: memory over the phases of a start, and the steady state as one bar.

One drawing for light and dark backgrounds: transparent canvas, mid-grey text and lines that read on
both. Weights are solid and dark, KV cache faint, free memory white with an outline; neighbours
differ in lightness and hatching as well as hue (Okabe-Ito hues, safe for colour-blind eyes).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsctl.errors import ConfigError
from dsctl.planning.units import GIB

if TYPE_CHECKING:
    from dsctl.model.plan import GpuPlan, Plan


#: Opaque, so that it is as faint on a dark page as on a light one.
_FAINT = "#f6e2b0"


class _Look(NamedTuple):
    label: str
    colour: str
    hatch: str = ""


_LOOKS = {
    "cuda_context": _Look("CUDA context", "#6b6b6b"),
    "dense_weights": _Look("dense weights", "#004c80"),
    "expert_planes": _Look("experts", "#0072b2"),
    "expert_cache": _Look("expert cache", "#0072b2", "//"),
    "draft_weights": _Look("draft", "#56b4e9"),
    "correction_pool": _Look("FP4 corrections", "#d55e00"),
    "workspace": _Look("workspace", "#cc79a7", ".."),
    "cuda_graphs": _Look("CUDA graphs", "#8c5a78"),
    "kv_cache": _Look("KV cache", _FAINT),
}
#: Greys that keep a contrast of 4.5 to 1 on white and on near-black alike are rare; this is one.
_INK = "#7a7a7a"
_INSTALL = "install it with `pip install 'dsctl[charts]'`"


def draw(plan: Plan, path: Path) -> None:
    """Draw `plan` into an .svg or .png file.

    Raises:
        ConfigError: another file type, a plan without GPUs, matplotlib missing, not writable.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(
            f"--chart {path}: draws .svg and .png files", remedy="name the file plan.svg"
        )
    if not plan.gpus:
        raise ConfigError(
            f"--chart: profile {plan.profile} has no GPU whose memory could be drawn",
            remedy="draw a GPU profile",
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "--chart needs matplotlib, which is not installed", remedy=_INSTALL
        ) from None
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    over_time, bars = figure.subplots(2, 1, height_ratios=[3, 0.5 + 0.4 * len(plan.gpus)])
    _timeline(over_time, plan.gpus[0])
    _steady(bars, plan.gpus)
    over_time.set_title(f"{plan.profile}: {plan.verdict}", color=_INK, loc="left")
    handles, labels = bars.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=5, frameon=False, labelcolor=_INK
    )
    try:
        figure.savefig(path, transparent=True, dpi=160)
    except OSError as error:
        raise ConfigError(
            f"--chart {path}: {error.strerror or error}", remedy="name a file that can be written"
        ) from None


def _timeline(axes: Any, gpu: GpuPlan) -> None:
    """Stacked columns per phase; what comes and goes is a hatched outline on top."""
    names = [phase.name for phase in gpu.timeline]
    capacity = gpu.capacity_bytes / GIB
    for at, phase in enumerate(gpu.timeline):
        base, peak = 0.0, phase.peak_bytes / GIB
        for name in _LOOKS:
            size = phase.resident.get(name, 0) / GIB
            if size:
                _column(axes, at, size, base, _LOOKS[name])
                base += size
        if phase.transient_bytes:
            axes.bar(
                at,
                phase.transient_bytes / GIB,
                bottom=base,
                width=0.72,
                fill=False,
                edgecolor=_INK,
                hatch="xx",
                linewidth=1.0,
            )
        axes.annotate(
            f"{peak:.1f}",
            # a number just below the line would be struck through by it
            (at, capacity if 0.92 * capacity < peak <= capacity else peak),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=_INK,
            fontsize=8,
            fontweight="bold" if phase.name == gpu.peak_phase else "normal",
        )
    axes.axhline(capacity, color=_INK, linewidth=1.2, linestyle="--")
    axes.annotate(
        f"{capacity:.2f} GiB on the card",
        (-0.45, capacity),
        xytext=(0, 4),
        textcoords="offset points",
        color=_INK,
        fontsize=8,
    )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(0, max(capacity, gpu.load_peak_bytes / GIB) * 1.12)
    axes.set_ylabel("GiB")
    _plain(axes)


def _column(axes: Any, at: int, size: float, base: float, look: _Look) -> None:
    axes.bar(
        at,
        size,
        bottom=base,
        width=0.72,
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        linewidth=0.4,
    )


def _steady(axes: Any, gpus: tuple[GpuPlan, ...]) -> None:
    """One bar per GPU: weights solid, KV cache faint, free memory white."""
    labelled: set[str] = set()
    for gpu in gpus:
        start = 0.0
        for name, look in _LOOKS.items():
            size = gpu.components.get(name, 0) / GIB
            if not size:
                continue
            axes.barh(
                gpu.index,
                size,
                left=start,
                height=0.6,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.4,
                label="_" if look.label in labelled else look.label,
            )
            if size > gpu.capacity_bytes / GIB * 0.05:
                ink = "#333333" if look.colour == _FAINT else "white"
                axes.text(
                    start + size / 2, gpu.index, f"{size:.1f}", ha="center", va="center",
                    color=ink, fontsize=8,
                )  # fmt: skip
            labelled.add(look.label)
            start += size
        free = max(0.0, gpu.capacity_bytes / GIB - start)
        axes.barh(
            gpu.index, free, left=start, height=0.6, color="white", edgecolor=_INK,
            linewidth=0.8, label="_" if "free" in labelled else "free",
        )  # fmt: skip
        labelled.add("free")
    axes.set_yticks([gpu.index for gpu in gpus], [f"GPU {gpu.index}" for gpu in gpus])
    axes.set_xlim(0, max(g.capacity_bytes for g in gpus) / GIB * 1.01)
    axes.set_xlabel("GiB once it serves")
    axes.invert_yaxis()
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.tick_params(colors=_INK)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
