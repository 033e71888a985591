"""The GPU sampler's helper: a process of its own, because a wedged driver blocks its caller.

Answers each line on stdin with one line `= JSON` (as `{"devices": [...]}` or `{"error": ...}`),
printing `> CALL` before every call into the driver so that whoever abandons it knows where it
hung. It ends when stdin ends, so it never outlives the supervisor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dsctl.host.nvml_child import failure, reply, say

#: nvml.h, nvmlClocksEventReasons; idle (bit 0) is none.
_THROTTLES = {
    0x002: "applications-clocks",
    0x004: "power-cap",
    0x008: "hardware-slowdown",
    0x010: "sync-boost",
    0x020: "thermal-software",
    0x040: "thermal-hardware",
    0x080: "power-brake",
    0x100: "display-clocks",
}
_SM, _MEMORY = 1, 2  # nvmlClockType_t


def main() -> None:
    """Answer until stdin ends."""
    try:
        import pynvml
    except ImportError:
        reply({"error": "the Python package nvidia-ml-py is missing"})
        return
    try:
        say("nvmlInit_v2")
        pynvml.nvmlInit()
        say("nvmlDeviceGetHandleByIndex")
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        for _ in sys.stdin:
            reply({"devices": [_device(pynvml, i, h) for i, h in enumerate(handles)]})
    except pynvml.NVMLError as error:
        reply(failure(pynvml, error))
    os._exit(0)  # nvmlShutdown of a sick driver may hang as well


def _device(pynvml: Any, index: int, handle: Any) -> dict[str, Any]:
    fatal = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN)

    def ask(name: str, *args: Any) -> Any:
        say(f"nvmlDeviceGet{name}")
        try:
            return getattr(pynvml, f"nvmlDeviceGet{name}")(handle, *args)
        except pynvml.NVMLError as error:
            if error.value in fatal:
                raise
            return None

    memory, rates = ask("MemoryInfo"), ask("UtilizationRates")
    return {
        "index": index,
        "memory_total_bytes": memory.total if memory is not None else None,
        "memory_used_bytes": memory.used if memory is not None else None,
        "utilization_percent": rates.gpu if rates is not None else None,
        "power_w": _watts(ask("PowerUsage")),
        "power_limit_w": _watts(ask("PowerManagementLimit")),
        "sm_clock_mhz": ask("ClockInfo", _SM),
        "memory_clock_mhz": ask("ClockInfo", _MEMORY),
        "temperature_c": ask("Temperature", 0),
        "throttled_by": _throttles(ask),
    }


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _throttles(ask: Callable[[str], Any]) -> list[str]:
    # The old name of the call, which every driver of these cards still has.
    bits = ask("CurrentClocksThrottleReasons") or 0
    return [word for bit, word in _THROTTLES.items() if bits & bit]


if __name__ == "__main__":
    main()
