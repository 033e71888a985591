"""What the NVIDIA driver says, through a helper process that can be abandoned."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsctl.host.root import AbsentError
from dsctl.model.facts import Gpu, GpuProcess, Nvml, NvmlState

# nvml.h, nvmlReturn_t
_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_GPU_IS_LOST = 15
_VERSION_MISMATCH = 18

_LIBRARY = "libnvidia-ml.so.1"
_GRACE_S = 0.2
_LARGEST_ANSWER_BYTES = 8 << 20


def ask_driver(deadline_s: float, command: list[str] | None = None) -> dict[str, Any]:
    """The driver's answer in the form of a recorded `nvml.json`, within about `deadline_s`.

    A helper that does not answer in time is killed and left behind: a process that hangs inside a
    driver call cannot even be killed, so nobody waits for its end.
    """
    if command is None and not may_have_library(os.environ, Path("/etc/ld.so.cache")):
        return {"error": "library not found"}
    helper = subprocess.Popen(
        command or [sys.executable, "-m", "dsctl.host.nvml_child"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        text, finished = _read(helper, time.monotonic() + deadline_s)
    finally:
        with suppress(OSError):
            helper.kill()
        with suppress(subprocess.TimeoutExpired):
            helper.wait(_GRACE_S)
    lines = text.splitlines()
    for line in reversed(lines):
        if line.startswith("= "):
            answer: dict[str, Any] = json.loads(line[2:])
            return answer
    last = next((line[2:] for line in reversed(lines) if line.startswith("> ")), "its start")
    if finished:
        how = helper.returncode
        died = f"signal {-how}" if how is not None and how < 0 else f"exit code {how}"
        return {"error": f"the NVML helper died ({died}) in {last}", "stuck_in": last}
    return {"error": f"no answer within {deadline_s:g} s", "stuck_in": last, "silent": True}


def may_have_library(environment: Mapping[str, str], cache: Path) -> bool:
    """Whether the dynamic linker could find NVML; saves starting a helper where it cannot.

    Looks where the linker does (ld.so(8)); without its cache the answer is "perhaps".
    """
    try:
        if _LIBRARY.encode() in cache.read_bytes():
            return True
    except OSError:
        return True
    named = [d for d in environment.get("LD_LIBRARY_PATH", "").split(":") if d]
    return any(
        Path(d, _LIBRARY).exists() for d in (*named, "/lib", "/usr/lib", "/lib64", "/usr/lib64")
    )


def _read(helper: subprocess.Popen[bytes], until: float) -> tuple[str, bool]:
    """All output until end of file (True) or until the time is up (False)."""
    assert helper.stdout is not None
    descriptor = helper.stdout.fileno()
    os.set_blocking(descriptor, False)
    chunks = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0 and len(chunks) < _LARGEST_ANSWER_BYTES:
            if not selector.select(left):
                continue
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                with suppress(subprocess.TimeoutExpired):
                    helper.wait(_GRACE_S)
                return chunks.decode("utf-8", errors="replace"), True
            chunks += chunk
    return chunks.decode("utf-8", errors="replace"), False


def parse_nvml(answer: Any) -> Nvml:
    """The value of a `nvml.json`.

    Raises:
        AbsentError: it does not have the promised form; says where.
    """
    if not isinstance(answer, dict):
        raise AbsentError("nvml.json is not an object")
    if "error" in answer:
        return _failure(answer)
    try:
        return Nvml(
            state=NvmlState.OK,
            driver_version=answer.get("driver_version"),
            cuda_driver_version=_cuda(answer.get("cuda_driver_version")),
            gpus=tuple(_gpu(d) for d in answer.get("devices", [])),
            p2p=tuple(tuple(_link(x) for x in row) for row in answer.get("p2p") or []),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise AbsentError(f"nvml.json is not in the promised form: {reason}") from None


def _failure(answer: dict[str, Any]) -> Nvml:
    error, code = str(answer["error"]), answer.get("code")
    state = NvmlState.ERROR
    if answer.get("silent"):
        state = NvmlState.SILENT
    elif code == _LIBRARY_NOT_FOUND or (code is None and "library not found" in error.lower()):
        state = NvmlState.NO_LIBRARY
    elif code == _VERSION_MISMATCH or "version mismatch" in error.lower():
        state = NvmlState.MISMATCH
    elif code == _GPU_IS_LOST:
        state = NvmlState.LOST
    elif code == _NOT_LOADED:
        error = f"{error} (the kernel module is not loaded)"
    return Nvml(state=state, error=error, code=code, stuck_in=answer.get("stuck_in"))


def _gpu(device: dict[str, Any]) -> Gpu:
    capability = device.get("compute_capability")
    return Gpu(
        index=device["index"],
        uuid=device.get("uuid"),
        name=device.get("name"),
        pci_bus_id=device.get("pci_bus_id"),
        compute_capability=tuple(capability) if capability else None,
        memory_total_bytes=device.get("memory_total"),
        memory_used_bytes=device.get("memory_used"),
        bar1_total_bytes=device.get("bar1_total"),
        power_limit_w=device.get("power_limit_w"),
        power_draw_w=device.get("power_draw_w"),
        temperature_c=device.get("temperature_c"),
        persistence_mode=_flag(device.get("persistence_mode")),
        ecc_mode=_flag(device.get("ecc_mode")),
        mig_mode=_flag(device.get("mig_mode")),
        pcie_gen_current=device.get("pcie_gen_current"),
        pcie_gen_max=device.get("pcie_gen_max"),
        pcie_width_current=device.get("pcie_width_current"),
        pcie_width_max=device.get("pcie_width_max"),
        processes=tuple(
            GpuProcess(pid=p["pid"], name=p.get("name"), used_bytes=p.get("used_memory"))
            for p in device.get("processes") or []
        ),
    )


def _flag(value: Any) -> bool | None:
    """A mode as a boolean, a number, or NVML's and nvidia-smi's words for it."""
    if isinstance(value, str):
        return value.strip().lower() in ("enabled", "on", "1", "true")
    return None if value is None else bool(value)


def _cuda(value: Any) -> str | None:
    """`13.0`, also from NVML's own number 13000."""
    if isinstance(value, int):
        return f"{value // 1000}.{value % 1000 // 10}"
    return None if value is None else str(value)


def _link(value: Any) -> str | None:
    """One cell of the P2P matrix: a word, a boolean, or NVML's status number (0 is OK)."""
    if isinstance(value, bool):
        return "ok" if value else "not-supported"
    if isinstance(value, int):
        return "ok" if value == 0 else f"status-{value}"
    return None if value is None else str(value).lower()
