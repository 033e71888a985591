"""How a plan looks in a terminal: a bar per GPU, a table, what binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsctl.planning.units import GIB, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsctl.model.plan import GpuPlan, Plan

_WIDTH = 60
#: One sign per component, so that the bar reads without colour too.
_SIGNS = {
    "cuda_context": "x",
    "dense_weights": "D",
    "expert_planes": "E",
    "expert_cache": "E",
    "draft_weights": "d",
    "correction_pool": "P",
    "workspace": "w",
    "cuda_graphs": "g",
    "kv_cache": "k",
}


def bar(gpu: GpuPlan, width: int = _WIDTH) -> str:
    """The steady state as one line: weights solid letters, KV `k`, free dots."""
    order = [name for name in _SIGNS if name in gpu.components]
    text, filled = "", 0.0
    for name in order:
        filled += gpu.components[name]
        upto = min(width, round(filled / gpu.capacity_bytes * width)) if gpu.capacity_bytes else 0
        text += _SIGNS[name] * max(0, upto - len(text))
    return f"[{text}{'.' * (width - len(text))}]"


def render(plan: Plan, *, title: str) -> RenderableType:
    """The whole plan for people."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{title}: {plan.verdict}", style="bold")]
    if plan.assumed_machine:
        parts.append(Text("on the machine the profile is made for"))
    for gpu in plan.gpus:
        parts += [Text(""), *_gpu(gpu)]
    parts += [Text(""), _table(plan)]
    if plan.reasons:
        parts.append(Text(""))
        parts += [Text(f"- {reason}") for reason in plan.reasons]
    return Group(*parts)


def _gpu(gpu: GpuPlan) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    free = gpu.capacity_bytes - gpu.steady_bytes
    head = f"GPU {gpu.index}  {gpu.name}: {show(gpu.steady_bytes)} of {show(gpu.capacity_bytes)}"
    legend = "  ".join(
        f"{_SIGNS[name]} {name} {size / GIB:.2f}" for name, size in gpu.components.items() if size
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("phase", "stays", "comes and goes", "peak", ""):
        table.add_column(name, justify="left" if name in ("phase", "") else "right")
    for phase in gpu.timeline:
        mark = "◀ peak" if phase.name == gpu.peak_phase else ""
        table.add_row(
            phase.name,
            show(phase.resident_bytes),
            show(phase.transient_bytes) if phase.transient_bytes else "",
            show(phase.peak_bytes),
            f"{mark} {phase.why}".strip(),
        )
    lines = [head, bar(gpu), f"{legend}  . free {free / GIB:.2f}  (GiB)"]
    return [*(Text(line) for line in lines), table]


def _table(plan: Plan) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    kv, host, disk = plan.kv, plan.host, plan.disk
    table.add_row(
        "KV cache",
        f"{kv.tokens:,} tokens, {kv.concurrency_at_max_len:.2f} full windows at once, "
        f"{kv.bytes_per_token:,.0f} B/token; at least {show(kv.needed_bytes)} needed",
    )
    if plan.correction_pool:
        pool = plan.correction_pool
        table.add_row("corrections", f"{pool.slots:,} slots of {show(pool.slot_bytes)}")
    table.add_row(
        "host memory",
        f"{show(host.steady_bytes)} ({show(host.pinned_bytes)} pinned), peak "
        f"{show(host.load_peak_bytes)}, of {show(host.available_bytes)} available; the page cache "
        f"would use {show(host.page_cache_bytes)}; /dev/shm {show(host.shm_bytes)}",
    )
    free = "unknown" if disk.free_bytes is None else show(disk.free_bytes)
    table.add_row(
        "disk",
        f"{show(disk.required_bytes)}, of it missing {show(disk.missing_bytes)}; free: {free}",
    )
    times = plan.time
    built = f"{_minutes(times.build_s)} to build the pack once, " if times.build_s else ""
    table.add_row(
        "time",
        f"{built}load {_span(times.load_s.low, times.load_s.high)}, ready after "
        f"{_span(times.ready_s.low, times.ready_s.high)}",
    )
    if plan.speed:
        decode, prefill = plan.speed.decode, plan.speed.prefill
        table.add_row(
            "decode",
            f"{decode.low:.0f}-{decode.high:.0f} tok/s, one stream (roofline {decode.bound:.0f}: "
            f"{decode.why})",
        )
        table.add_row(
            "prefill",
            f"{prefill.low:,.0f}-{prefill.high:,.0f} tok/s (roofline {prefill.bound:,.0f}: "
            f"{prefill.why})",
        )
    table.add_row("quality", plan.quality)
    return table


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _span(low: float, high: float) -> str:
    return f"{_minutes(low)} to {_minutes(high)}"
