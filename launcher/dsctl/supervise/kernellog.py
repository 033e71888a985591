"""The kernel's log since a moment: what it says about our engine, its cards and its disks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_RECORD_MAX = 8192
_KEEP = 400
#: Lines worth keeping: memory, NVIDIA's driver, PCIe and IOMMU faults, disks, crashes.
_TELLING = re.compile(
    r"(?i)out of memory|oom-kill|oom_reaper|Killed process|NVRM|nvidia|AER:|DMAR|AMD-Vi|iommu"
    r"|segfault|general protection|traps:|I/O error|EXT4-fs error|XFS|page allocation|hung_task"
    r"|blocked for more than"
)
#: Lines about a process: a kill, a crash, a wait.
_ABOUT = re.compile(
    r"Killed process (\d+)|oom-kill:.*\bpid=(\d+)|oom_reaper: reaped process (\d+)"
    r"|\[(\d+)\]: segfault|traps: [^\[]*\[(\d+)\]|task \S+:(\d+) blocked"
)
#: Lines of a kill for lack of memory that name no process.
_OOM = re.compile(r"(?i)oom[-_]kill|out of memory|page allocation")


def kernel_lines(
    since_s: float, pids: Iterable[int], read: Callable[[], Iterable[str]] | None = None
) -> tuple[str, ...]:
    """Telling lines since `since_s` after boot. What is about a process that is not one of `pids`
    is somebody else's and left out, and so is a lack of memory that ours did not die of.
    Empty where the log may not be read.

    `read` gives the records of `/dev/kmsg` (see Documentation/ABI/testing/dev-kmsg).
    """
    ours, kept, died = set(pids), list[str](), False
    for record in (read or _records)():
        head, _, message = record.partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not fields[2].isdigit():
            continue
        at_s = int(fields[2]) / 1e6
        text = message.split("\n", 1)[0]
        if at_s < since_s or not _TELLING.search(text):
            continue
        about = _ABOUT.search(text)
        if about and int(next(pid for pid in about.groups() if pid)) not in ours:
            continue
        died = died or (about is not None and _OOM.search(text) is not None)
        kept.append(f"[{at_s:12.6f}] {text}")
    if not died:
        kept = [text for text in kept if not _OOM.search(text)]
    return tuple(kept[-_KEEP:])


def since_boot(unix_t: float) -> float:
    """A moment of the wall clock in seconds after boot, as far as the clocks agree now."""
    return unix_t - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


def _records() -> Iterator[str]:
    try:
        descriptor = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while True:
            try:
                yield os.read(descriptor, _RECORD_MAX).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten while we read: go on with the oldest there is
                continue
            except OSError:
                return
    finally:
        os.close(descriptor)
