"""How much memory this process may still take: of the machine, and of the control groups it is in.

In a container the machine's own figure says nothing of the container's limit, and whoever believes
it is killed instead of told.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_UNLIMITED = 1 << 62
"""Limits from here on are none (version 1 writes 2^63 less a page, version 2 `max`)."""


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping or being killed: the least of all limits' rests."""
    return min([int(psutil.virtual_memory().available), *cgroup_rests(root)])


def cgroup_rests(root: Path = Path("/")) -> list[int]:
    """What is left under each memory limit of this process's groups, page cache not counted.

    Both versions: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of Linux.
    Groups that this process cannot see (a container sees its own as the top) are left out.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rests = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
            names: tuple[str, str, tuple[str, ...]] = ("memory.max", "memory.current", ("file",))
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ("total_inactive_file", "total_active_file"),
            )
        else:
            continue
        at = top / path.lstrip("/")
        for group in (at, *at.parents):
            if group == top or top in group.parents:
                rest = _rest(group, *names)
                if rest is not None:
                    rests.append(rest)
    return rests


def _rest(group: Path, limit: str, usage: str, cache: tuple[str, ...]) -> int | None:
    """Limit less usage without page cache; None where there is no limit or no such group."""
    try:
        text = (group / limit).read_text().strip()
        if text == "max" or int(text) >= _UNLIMITED:
            return None
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    held = used - sum(int(stat.get(name, 0)) for name in cache)
    return max(int(text) - max(held, 0), 0)
