"""GPU power while something runs, sampled from NVML; nothing where NVML does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from dsctl.bench.schema import Power

INTERVAL_S = 0.1


def energy_of(samples: Sequence[tuple[float, float]]) -> Power | None:
    """Mean power and energy of (seconds, watts) samples, by the trapezoid rule."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    energy = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(samples))
    return Power(mean_w=energy / (samples[-1][0] - samples[0][0]), energy_j=energy)


class PowerMeter:
    """Samples the summed draw of all GPUs between `start` and `stop`."""

    def __init__(self, read_w: Callable[[], float] | None = None) -> None:
        self._read = read_w if read_w is not None else _nvml_reader()
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin a measurement."""
        if self._read is None:
            return
        self._samples, self._stop = [], threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> Power | None:
        """End it; None where there is no power to read."""
        if self._thread is None:
            return None
        self._stop.set()
        self._thread.join()
        self._thread = None
        return energy_of(self._samples)

    def _loop(self) -> None:
        assert self._read is not None
        while True:
            try:
                self._samples.append((time.perf_counter(), self._read()))
            except Exception:  # a driver that stops answering ends the measurement, not the bench
                return
            if self._stop.wait(INTERVAL_S):
                return


def _nvml_reader() -> Callable[[], float] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        handles: list[Any] = [
            pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
        ]
        if not handles:
            return None
        for handle in handles:
            pynvml.nvmlDeviceGetPowerUsage(handle)
    except Exception:  # no library, no driver, no permission, no such sensor: no power
        return None
    return lambda: sum(pynvml.nvmlDeviceGetPowerUsage(h) for h in handles) / 1000
