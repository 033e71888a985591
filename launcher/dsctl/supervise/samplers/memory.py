"""Memory of the machine and of the engine's control group. Parsers are pure."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from dsctl.host.memory import parse_meminfo
from dsctl.model.sample import CgroupSample, HostSample, Stall
from dsctl.supervise.samplers.proc import read_bytes
from dsctl.supervise.samplers.reader import Unreadable

_VMSTAT = {
    b"pswpin": "swapped_in",
    b"pswpout": "swapped_out",
    b"pgmajfault": "major_faults",
    b"oom_kill": "oom_kills",
}
_AVG10 = re.compile(rb"^(some|full) avg10=([\d.]+)", re.M)
#: cgroup v1 says "no limit" with the largest multiple of a page.
_V1_UNLIMITED = 1 << 62


def parse_vmstat(text: bytes) -> dict[str, int]:
    """The counters that tell of swapping, faults from disk and kills for lack of memory."""
    found = {}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b" ")
        if name in _VMSTAT:
            found[_VMSTAT[name]] = int(value)
    return found


def parse_stall(text: bytes | None) -> Stall | None:
    """Averages over 10 s of a pressure file (PSI); None where the kernel keeps none."""
    shares = {kind.decode(): float(share) for kind, share in _AVG10.findall(text or b"")}
    if "some" not in shares:
        return None
    return Stall.model_construct(some=shares["some"], full=shares.get("full", 0.0))


def read_host(root: str = "") -> HostSample:
    """The machine's memory now.

    Raises:
        Unreadable: there is no /proc/meminfo.
    """
    text = read_bytes(f"{root}/proc/meminfo")
    if text is None:
        raise Unreadable("/proc/meminfo cannot be read")
    sizes = parse_meminfo(text.decode())
    counters = parse_vmstat(read_bytes(f"{root}/proc/vmstat") or b"")
    page = mmap.PAGESIZE
    swapped_in, swapped_out = counters.get("swapped_in"), counters.get("swapped_out")
    return HostSample.model_construct(
        total_bytes=sizes.get("MemTotal", 0),
        available_bytes=sizes.get("MemAvailable", sizes.get("MemFree", 0)),
        free_bytes=sizes.get("MemFree", 0),
        cached_bytes=sizes.get("Cached", 0),
        shared_bytes=sizes.get("Shmem", 0),
        locked_bytes=sizes.get("Mlocked", 0),
        swap_total_bytes=sizes.get("SwapTotal", 0),
        swap_free_bytes=sizes.get("SwapFree", 0),
        swapped_in_bytes=None if swapped_in is None else swapped_in * page,
        swapped_out_bytes=None if swapped_out is None else swapped_out * page,
        major_faults=counters.get("major_faults"),
        oom_kills=counters.get("oom_kills"),
        memory_stall=parse_stall(read_bytes(f"{root}/proc/pressure/memory")),
        io_stall=parse_stall(read_bytes(f"{root}/proc/pressure/io")),
        cpu_stall=parse_stall(read_bytes(f"{root}/proc/pressure/cpu")),
    )


def find_cgroup(pid: int, root: str = "") -> tuple[int, Path]:
    """Version and directory of the control group that counts a process's memory.

    A hybrid machine mounts both; memory is counted by v1 where a v1 hierarchy has the controller.

    Raises:
        Unreadable: neither is mounted where systemd and every distribution mount it.
    """
    text = (read_bytes(f"{root}/proc/{pid}/cgroup") or b"").decode(errors="replace")
    v1 = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.*)$", text, re.M)
    if v1 is not None:
        base = Path(f"{root}/sys/fs/cgroup/memory")
        return 1, _deepest(base, v1[1], "memory.usage_in_bytes")
    v2 = re.search(r"^0::/(.*)$", text, re.M)
    if v2 is not None:
        return 2, _deepest(Path(f"{root}/sys/fs/cgroup"), v2[1], "memory.current")
    raise Unreadable(f"/proc/{pid}/cgroup names no memory control group")


def _deepest(base: Path, path: str, file: str) -> Path:
    """The group itself, or from inside a container, where its path means nothing, the root."""
    for directory in (base / path, base):
        if (directory / file).exists():
            return directory
    raise Unreadable(f"{base / path} has no {file}: memory is not counted there")


def read_cgroup(version: int, directory: Path) -> CgroupSample:
    """Memory of the control group now.

    Raises:
        Unreadable: it is gone.
    """
    names = _NAMES[version]
    current = _number(directory / names["current"])
    if current is None:
        raise Unreadable(f"control group {directory} is gone")
    parts = _words(directory / "memory.stat")
    events = _words(directory / names["events"])
    limit = _limit(directory, names["limit"])
    return CgroupSample.model_construct(
        version=version,
        path=str(directory),
        current_bytes=current,
        limit_bytes=limit,
        anonymous_bytes=parts.get(names["anonymous"]),
        file_bytes=parts.get(names["file"]),
        shared_bytes=parts.get("total_shmem" if version == 1 else "shmem"),
        swap_bytes=parts.get("total_swap")
        if version == 1
        else _number(directory / "memory.swap.current"),
        limit_hits=_number(directory / "memory.failcnt") if version == 1 else events.get("max"),
        oom_kills=events.get("oom_kill"),
    )


_NAMES = {
    1: {
        "current": "memory.usage_in_bytes",
        "limit": "memory.limit_in_bytes",
        "events": "memory.oom_control",
        "anonymous": "total_rss",
        "file": "total_cache",
    },
    2: {
        "current": "memory.current",
        "limit": "memory.max",
        "events": "memory.events",
        "anonymous": "anon",
        "file": "file",
    },
}


def _limit(directory: Path, name: str) -> int | None:
    """The tightest limit of the group and those above it; None: unlimited."""
    limits = []
    for above in (directory, *directory.parents):
        found = _number(above / name)
        if found is None:
            if not (above / "cgroup.procs").exists():
                break
        elif found < _V1_UNLIMITED:
            limits.append(found)
    return min(limits, default=None)


def _number(path: Path) -> int | None:
    text = (read_bytes(str(path)) or b"").strip()
    return int(text) if text.isdigit() else None


def _words(path: Path) -> dict[str, int]:
    found = {}
    for line in (read_bytes(str(path)) or b"").decode().splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            found[key] = int(value)
    return found
