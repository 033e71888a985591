"""Memory, swap, pressure and NUMA: parsers of /proc and /sys texts."""

from __future__ import annotations

import re

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import (
    Memory,
    Numa,
    NumaNode,
    Pressure,
    Shm,
    SwapDevice,
    SwapKind,
    Vm,
)


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo as bytes (or a count where the kernel gives no unit).

    A NUMA node's file has the same lines behind `Node N`.
    """
    values = {}
    for match in re.finditer(r"^(?:Node \d+ )?(\w+(?:\(\w+\))?):\s+(\d+)( kB)?", text, re.M):
        values[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return values


def memory(root: Root) -> Memory:
    """Main memory. Page cache that can be dropped counts as available, as the kernel says."""
    values = parse_meminfo(root.text("proc/meminfo"))
    if "MemTotal" not in values:
        raise AbsentError("/proc/meminfo has no MemTotal line")
    free = values.get("MemFree", 0)
    guess = free + values.get("Cached", 0) + values.get("Buffers", 0) - values.get("Shmem", 0)
    return Memory(
        total_bytes=values["MemTotal"],
        available_bytes=values.get("MemAvailable", guess),
        free_bytes=free,
        cached_bytes=values.get("Cached", 0),
        shared_bytes=values.get("Shmem", 0),
        locked_bytes=values.get("Mlocked", 0),
        swap_total_bytes=values.get("SwapTotal", 0),
        swap_free_bytes=values.get("SwapFree", 0),
        commit_limit_bytes=values.get("CommitLimit"),
        committed_bytes=values.get("Committed_AS"),
        huge_pages_total=values.get("HugePages_Total", 0),
        huge_pages_free=values.get("HugePages_Free", 0),
        huge_page_bytes=values.get("Hugepagesize", 0),
        limit_bytes=_limit(root),
    )


def _limit(root: Root) -> int | None:
    """The tightest memory limit of this process's control group and those above it."""
    own = root.text_or("proc/self/cgroup") or ""
    match = re.search(r"^0::/(.*)$", own, re.M)
    if match is None:
        return None
    limits = []
    parts = [p for p in match[1].split("/") if p and p != ".."]
    for depth in range(len(parts) + 1):
        directory = "/".join(["sys/fs/cgroup", *parts[:depth]])
        text = root.text_or(f"{directory}/memory.max")
        if text is not None and text.isdigit():
            limits.append(int(text))
    return min(limits, default=None)


def parse_swaps(text: str) -> list[SwapDevice]:
    """/proc/swaps; sizes there are in KiB. A zram device says so by its name."""
    devices = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 5:
            continue
        path = fields[0].replace("\\040", " ")
        kind = SwapKind.FILE if fields[1] == "file" else SwapKind.PARTITION
        if path.rpartition("/")[2].startswith("zram"):
            kind = SwapKind.ZRAM
        devices.append(
            SwapDevice(
                path=path,
                kind=kind,
                size_bytes=int(fields[2]) * 1024,
                used_bytes=int(fields[3]) * 1024,
                priority=int(fields[4]),
            )
        )
    return devices


def vm(root: Root) -> Vm:
    """Settings and counters of the virtual memory system."""
    counters: dict[str, int] = {}
    for line in (root.text_or("proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            counters[name] = int(value)
    found = Vm(
        swappiness=root.int_or("proc/sys/vm/swappiness"),
        overcommit_memory=root.int_or("proc/sys/vm/overcommit_memory"),
        pages_swapped_in=counters.get("pswpin"),
        pages_swapped_out=counters.get("pswpout"),
        oom_kills=counters.get("oom_kill"),
    )
    if found == Vm():
        raise AbsentError("neither /proc/vmstat nor /proc/sys/vm can be read")
    return found


def parse_pressure(text: str) -> Pressure:
    """/proc/pressure/memory (PSI, kernel documentation accounting/psi.rst)."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        kind, *pairs = line.split()
        for pair in pairs:
            key, _, number = pair.partition("=")
            if key.startswith("avg"):
                values[f"{kind}_{key}"] = float(number)
    try:
        return Pressure.model_validate(values)
    except ValueError:
        raise AbsentError("/proc/pressure/memory is not in the form PSI has") from None


def numa(root: Root) -> Numa:
    """NUMA nodes with their memory, and the nodes this process may use."""
    base = "sys/devices/system/node"
    nodes = []
    for name in root.names(base):
        if not re.fullmatch(r"node\d+", name):
            continue
        text = root.text_or(f"{base}/{name}/meminfo")
        if text is None:
            continue
        values = parse_meminfo(text)
        nodes.append(
            NumaNode(
                index=int(name[4:]),
                total_bytes=values.get("MemTotal", 0),
                free_bytes=values.get("MemFree", 0) + values.get("FilePages", 0),
                cpus=root.text_or(f"{base}/{name}/cpulist") or "",
            )
        )
    if not nodes:
        raise AbsentError(f"/{base} names no node with a meminfo file")
    nodes.sort(key=lambda node: node.index)
    status = root.text_or("proc/self/status") or ""
    allowed = re.search(r"^Mems_allowed_list:\s*([\d,-]+)", status, re.M)
    return Numa(nodes=tuple(nodes), allowed=parse_list(allowed[1]) if allowed else None)


def parse_list(text: str) -> tuple[int, ...]:
    """The kernel's list form: `0-3,8` is 0, 1, 2, 3, 8."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def shm_of(total: int, free: int) -> Shm:
    """/dev/shm from its two sizes in bytes."""
    return Shm(total_bytes=total, free_bytes=free)
