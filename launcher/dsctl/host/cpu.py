"""Processors: parser of /proc/cpuinfo."""

from __future__ import annotations

import platform

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import Cpu

#: Instruction sets that decide which build of the engine runs, by the kernel's names.
_WANTED = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "hypervisor",
)


def parse_cpuinfo(text: str) -> Cpu:
    """The processors of /proc/cpuinfo, one block of lines for each hardware thread."""
    threads = 0
    sockets: set[str] = set()
    cores: set[tuple[str, str]] = set()
    first: dict[str, str] = {}
    for block in text.split("\n\n"):
        values = {}
        for line in block.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                values[key.strip()] = value.strip()
        if "processor" not in values:
            continue
        threads += 1
        first = first or values
        socket = values.get("physical id", "0")
        sockets.add(socket)
        cores.add((socket, values.get("core id", str(threads))))
    if not threads:
        raise AbsentError("/proc/cpuinfo names no processor")
    flags = set(first.get("flags", first.get("Features", "")).split())
    vendor = first.get("vendor_id", "")
    return Cpu(
        architecture="x86_64" if "flags" in first else "aarch64",
        vendor=vendor,
        model=first.get("model name", vendor or "unknown"),
        sockets=max(1, len(sockets)),
        cores=max(1, len(cores)),
        threads=threads,
        features=tuple(name for name in _WANTED if name in flags),
    )


def cpu(root: Root) -> Cpu:
    """The processors of a host."""
    found = parse_cpuinfo(root.text("proc/cpuinfo"))
    if root.recorded:
        return found
    return found.model_copy(update={"architecture": platform.machine()})
