"""Numbers worked out from those in the log, for remedies. Pure: texts in, a text or None out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Numbers = Mapping[str, str]


def fitting_utilization(numbers: Numbers) -> str | None:
    """The `gpu_memory_utilization` that what is free now allows, a hundredth below the edge."""
    free, total = _number(numbers, "free_gib"), _number(numbers, "total_gib")
    if free is None or not total:
        return None
    share = math.floor(free / total * 100 - 1) / 100
    return f"{share:.2f}" if 0.05 < share < 1 else None


def missing_gib(numbers: Numbers) -> str | None:
    """How much memory a request lacked: needed less available."""
    needed, available = _number(numbers, "needed_gib"), _number(numbers, "available_gib")
    if needed is None or available is None or needed <= available:
        return None
    return f"{needed - available:.2f}"


def round_model_len(numbers: Numbers) -> str | None:
    """The log's estimate of a model length that fits, rounded down to whole KV blocks of 256."""
    estimate = _number(numbers, "estimated_len")
    if estimate is None or estimate < 1:
        return None
    return str(int(estimate) // 256 * 256 or int(estimate))


def killed_gib(numbers: Numbers) -> str | None:
    """Resident memory of a killed process, from the kernel's kB."""
    kib = _number(numbers, "anon_kib")
    return None if kib is None else f"{kib / 2**20:.1f}"


DERIVED: dict[str, Callable[[Numbers], str | None]] = {
    function.__name__: function
    for function in (fitting_utilization, missing_gib, round_model_len, killed_gib)
}


def _number(numbers: Numbers, name: str) -> float | None:
    try:
        return float(numbers[name].replace(",", ""))
    except (KeyError, ValueError):
        return None
