"""The NVML helper: a process of its own, because a wedged driver blocks its caller for ever.

Prints `> CALL` before every call into the driver, so that whoever abandons it knows where it hung,
and one JSON document in the form of a recorded `nvml.json` behind `= ` at the end. It decides
nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

#: nvml.h, NVML_P2P_CAPS_INDEX_READ; the constant of that name in pynvml is a tuple by mistake.
_P2P_READ = 0
#: nvml.h, nvmlGpuP2PStatus_t (by number: the names of some changed between versions).
_P2P = {
    0: "ok",
    1: "chipset-not-supported",
    2: "gpu-not-supported",
    3: "topology-not-supported",
    4: "disabled-by-driver-option",
    5: "not-supported",
}


def main() -> None:
    """Ask the driver everything and print the answer."""
    try:
        import pynvml
    except ImportError:
        reply({"error": "the Python package nvidia-ml-py is missing"})
        return
    try:
        say("nvmlInit_v2")
        pynvml.nvmlInit()
        answer = _ask(pynvml)
    except pynvml.NVMLError as error:
        answer = failure(pynvml, error)
    reply(answer)
    os._exit(0)  # nvmlShutdown of a sick driver may hang as well


def failure(pynvml: Any, error: Any) -> dict[str, Any]:
    """An error of the library in the form of a recorded `nvml.json`."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return {"error": "library not found"}
    return {"error": str(error), "code": error.value}


def say(call: str) -> None:
    """Tell whoever may abandon us where we are."""
    sys.stdout.write(f"> {call}\n")
    sys.stdout.flush()


def reply(value: dict[str, Any]) -> None:
    """Print an answer."""
    sys.stdout.write("= " + json.dumps(value) + "\n")
    sys.stdout.flush()


def _ask(pynvml: Any) -> dict[str, Any]:
    fatal = {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }

    def call(name: str, *args: Any) -> Any:
        """The value of one call; None where this card or driver does not answer it."""
        say(name)
        try:
            return getattr(pynvml, name)(*args)
        except pynvml.NVMLError as error:
            if error.value in fatal:
                raise
            return None

    answer: dict[str, Any] = {"driver_version": _text(call("nvmlSystemGetDriverVersion"))}
    cuda = call("nvmlSystemGetCudaDriverVersion")
    answer["cuda_driver_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
    handles = []
    for index in range(call("nvmlDeviceGetCount") or 0):
        say("nvmlDeviceGetHandleByIndex")
        handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
    answer["devices"] = [_device(i, handle, call) for i, handle in enumerate(handles)]
    answer["p2p"] = [[_p2p(a, b, call) for b in handles] for a in handles]
    return answer


def _device(index: int, handle: Any, call: Callable[..., Any]) -> dict[str, Any]:
    def ask(name: str, *args: Any) -> Any:
        return call(f"nvmlDeviceGet{name}", handle, *args)

    pci, memory, bar1 = ask("PciInfo"), ask("MemoryInfo"), ask("BAR1MemoryInfo")
    ecc, mig = ask("EccMode"), ask("MigMode")
    limit, draw = ask("PowerManagementLimit"), ask("PowerUsage")
    capability = ask("CudaComputeCapability")
    return {
        "index": index,
        "uuid": _text(ask("UUID")),
        "name": _text(ask("Name")),
        "pci_bus_id": _text(pci.busId) if pci is not None else None,
        "compute_capability": list(capability) if capability else None,
        "memory_total": memory.total if memory is not None else None,
        "memory_used": memory.used if memory is not None else None,
        "bar1_total": bar1.bar1Total if bar1 is not None else None,
        "power_limit_w": limit / 1000 if limit is not None else None,
        "power_draw_w": draw / 1000 if draw is not None else None,
        "temperature_c": ask("Temperature", 0),
        "persistence_mode": _flag(ask("PersistenceMode")),
        "ecc_mode": _flag(ecc[0]) if ecc else None,
        "mig_mode": _flag(mig[0]) if mig else None,
        "pcie_gen_current": ask("CurrPcieLinkGeneration"),
        "pcie_gen_max": ask("MaxPcieLinkGeneration"),
        "pcie_width_current": ask("CurrPcieLinkWidth"),
        "pcie_width_max": ask("MaxPcieLinkWidth"),
        "processes": _processes(ask, call),
    }


def _processes(ask: Callable[..., Any], call: Callable[..., Any]) -> list[dict[str, Any]]:
    found: dict[int, Any] = {}
    for kind in ("Compute", "Graphics"):
        for process in ask(f"{kind}RunningProcesses") or []:
            found.setdefault(process.pid, process.usedGpuMemory)
    return [
        {"pid": pid, "name": _text(call("nvmlSystemGetProcessName", pid)), "used_memory": used}
        for pid, used in sorted(found.items())
    ]


def _p2p(a: Any, b: Any, call: Callable[..., Any]) -> str | None:
    if a is b:
        return "self"
    status = call("nvmlDeviceGetP2PStatus", a, b, _P2P_READ)
    return None if status is None else _P2P.get(status, "unknown")


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return None if value is None else str(value)


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


if __name__ == "__main__":
    main()
