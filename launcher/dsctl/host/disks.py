"""Mounted filesystems: sizes through psutil (or a recorded `disks.json`), devices through sysfs."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import Disk, SwapDevice

#: Filesystems that hold nothing one could keep a model in.
_NOT_DISKS = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "pstore", "bpf", "tracefs"),
        *("debugfs", "securityfs", "mqueue", "hugetlbfs", "configfs", "fusectl", "autofs"),
        *("binfmt_misc", "rpc_pipefs", "nsfs", "efivarfs", "squashfs", "ramfs"),
    }
)
_READ_BLOCK_BYTES = 8 << 20


def ask_disks() -> list[dict[str, Any]]:
    """Every mounted filesystem of this machine in the form of a recorded `disks.json`.

    A network filesystem whose server is gone blocks `statvfs` for ever; those are listed with sizes
    of 0 rather than asked.
    """
    import psutil

    found = []
    for mount in psutil.disk_partitions(all=True):
        if mount.fstype in _NOT_DISKS or mount.mountpoint.startswith(("/proc", "/sys")):
            continue
        total = free = 0
        if not mount.fstype.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "ceph")):
            try:
                usage = psutil.disk_usage(mount.mountpoint)
            except OSError:
                continue
            total, free = usage.total, usage.free
        found.append(
            {
                "path": mount.mountpoint,
                "fstype": mount.fstype,
                "total": total,
                "free": free,
                "options": mount.opts,
                "device": mount.device,
            }
        )
    return found


def parse_disks(answer: Any, root: Root) -> tuple[Disk, ...]:
    """The value of a `disks.json`.

    Raises:
        AbsentError: it does not have the promised form.
    """
    if not isinstance(answer, list):
        raise AbsentError("disks.json is not a list")
    devices = _mounted(root.text_or("proc/mounts") or "")
    try:
        return tuple(
            Disk(
                path=d["path"],
                fstype=d["fstype"],
                total_bytes=d["total"],
                free_bytes=d["free"],
                options=_options(d.get("options")),
                device=(device := d.get("device") or devices.get(d["path"])),
                rotational=rotational(root, device),
            )
            for d in answer
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise AbsentError(f"disks.json is not in the promised form: {reason}") from None


def _options(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(o for o in value.split(",") if o)
    return tuple(value or ())


def _mounted(mounts: str) -> dict[str, str]:
    """Device of every mount point in /proc/mounts."""
    devices = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2:
            devices[fields[1].replace("\\040", " ")] = fields[0]
    return devices


def rotational(root: Root, device: str | None) -> bool | None:
    """Whether the disk under a block device spins."""
    name = (device or "").rpartition("/")[2]
    if not (device or "").startswith("/dev/") or not name:
        return None
    whole = re.sub(r"p\d+$", "", name) if re.search(r"\dp\d+$", name) else name.rstrip("0123456789")
    for candidate in (name, whole):
        value = root.int_or(f"sys/block/{candidate}/queue/rotational")
        if value is not None:
            return bool(value)
    return None


def with_disks(devices: list[SwapDevice], disks: tuple[Disk, ...], root: Root) -> list[SwapDevice]:
    """Swap devices with whether the disk they lie on spins."""

    def spins(device: SwapDevice) -> bool | None:
        if device.path.startswith("/dev/"):
            return rotational(root, device.path)
        above = [d for d in disks if device.path.startswith(d.path.rstrip("/") + "/")]
        return max(above, key=lambda d: len(d.path)).rotational if above else None

    return [d.model_copy(update={"rotational": spins(d)}) for d in devices]


def read_speed(path: Path, seconds: float = 2.0) -> float | None:
    """Measured sequential read speed of a file in bytes/s, its pages dropped from the cache first.

    None where the file cannot be read or is too small to tell (below 64 MiB).
    """
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < 64 << 20:
                return None
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                block = file.read(_READ_BLOCK_BYTES)
                if not block:
                    break
                done += len(block)
            return done / max(time.perf_counter() - began, 1e-9)
    except OSError:
        return None
