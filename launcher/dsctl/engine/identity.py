"""Finds, watches and signals processes that are ours, and only those."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dsctl.engine.keeper import boot_id, start_ticks
from dsctl.model.deployment import ProcessIdentity

_DEAD = ("Z", "X")


def identify(pid: int) -> ProcessIdentity:
    """The identity of a running process.

    Raises:
        OSError: there is no such process.
    """
    return ProcessIdentity(pid=pid, start_ticks=start_ticks(pid), boot_id=boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    if process.boot_id != boot_id():
        return False
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.start_ticks and fields[0] not in _DEAD


def send(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal the process if it still is the recorded one; False when it is gone."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(process: ProcessIdentity, timeout_s: float, poll_s: float = 0.05) -> bool:
    """Wait until the process has ended; False when `timeout_s` passed before."""
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def session_members(session: int, since_ticks: int) -> list[ProcessIdentity]:
    """Living processes of a session that started no earlier than `since_ticks` after boot.

    The second condition keeps out a foreign session that got the number after ours was gone.
    """
    found = []
    boot = boot_id()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fields = _stat(int(entry.name))
        if fields is None or fields[0] in _DEAD or int(fields[3]) != session:
            continue
        if int(fields[19]) >= since_ticks:
            pid = int(entry.name)
            found.append(ProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=boot))
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the third (state) on, or None when there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def age_s(process: ProcessIdentity) -> float:
    """Seconds since the process began, whatever the wall clock has done meanwhile."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, since_boot - process.start_ticks / os.sysconf("SC_CLK_TCK"))


def parent_of(process: ProcessIdentity) -> ProcessIdentity | None:
    """The living parent of a process; None where it has none but init."""
    fields = _stat(process.pid)
    if fields is None or int(fields[1]) <= 1:
        return None
    try:
        return identify(int(fields[1]))
    except OSError:
        return None
