"""The engine's processes: which they are, and what /proc says about each. Parsers are pure.

Sizes come from `/proc/PID/status`, whose counters the kernel keeps: `smaps_rollup` walks every
page table, which takes seconds for a process with 100 GB and stops its memory management meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dsctl.model.deployment import ProcessIdentity
from dsctl.model.sample import ProcessSample
from dsctl.supervise.samplers.reader import Unreadable

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LARGEST = 1 << 16
#: Full scans of /proc; in between only process numbers that are new are looked at.
_FULL_SCAN_EVERY = 20


def read_bytes(path: str) -> bytes | None:
    """A small file of /proc or /sys in one read, or None where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _LARGEST)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Stat:
    """What is needed of `/proc/PID/stat` (proc(5)); `start_ticks` after boot."""

    state: str
    session: int
    major_faults: int
    cpu_s: float
    start_ticks: int


def parse_stat(text: bytes) -> Stat | None:
    """The fields behind the name, which may hold spaces and parentheses."""
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        state=fields[0].decode(),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        start_ticks=int(fields[19]),
    )


def parse_pairs(text: bytes) -> dict[bytes, int]:
    """`Name:  123 kB` lines as bytes (or as they are, without the unit); others are left out."""
    found = {}
    for line in text.split(b"\n"):
        key, _, rest = line.partition(b":")
        words = rest.split()
        if len(words) in (1, 2) and words[0].isdigit():
            found[key] = int(words[0]) * (1024 if len(words) == 2 else 1)
    return found


def parse_process(pid: int, stat: Stat, status: bytes, io: bytes | None) -> ProcessSample:
    """One process from its `stat`, `status` and, where we may read it, `io`."""
    name = status[status.find(b":") + 1 : status.find(b"\n")].strip()
    sizes = parse_pairs(status)
    done = parse_pairs(io) if io else {}
    return ProcessSample.model_construct(
        pid=pid,
        name=name.decode(errors="replace"),
        state=stat.state,
        resident_bytes=sizes.get(b"VmRSS", 0),
        anonymous_bytes=sizes.get(b"RssAnon", 0),
        file_bytes=sizes.get(b"RssFile", 0),
        shared_bytes=sizes.get(b"RssShmem", 0),
        locked_bytes=sizes.get(b"VmLck", 0) + sizes.get(b"VmPin", 0),
        swapped_bytes=sizes.get(b"VmSwap", 0),
        cpu_s=stat.cpu_s,
        major_faults=stat.major_faults,
        read_bytes=done.get(b"read_bytes"),
        read_chars=done.get(b"rchar"),
        write_bytes=done.get(b"write_bytes"),
    )


#: Lists the process numbers of the engine.
Tree = Callable[[], Iterable[int]]


@dataclass
class SessionTree:
    """The processes of the session that a plain engine leads."""

    leader: ProcessIdentity
    proc: str = "/proc"
    _foreign: set[int] = field(default_factory=set)
    _scans: int = 0

    def __call__(self) -> list[int]:
        """Their numbers. Numbers known to be somebody else's are not looked at each time."""
        if self._scans % _FULL_SCAN_EVERY == 0:
            self._foreign.clear()
        self._scans += 1
        numbers = {int(name) for name in os.listdir(self.proc) if name.isdigit()}  # noqa: PTH208
        self._foreign &= numbers
        found = []
        for pid in sorted(numbers - self._foreign):
            text = read_bytes(f"{self.proc}/{pid}/stat")
            stat = parse_stat(text) if text else None
            if stat is None:
                continue
            if stat.session == self.leader.pid and stat.start_ticks >= self.leader.start_ticks:
                found.append(pid)
            else:
                self._foreign.add(pid)
        return found


@dataclass(frozen=True)
class CgroupTree:
    """The processes of a container: those of its control group (`cgroup.procs` in `directory`)."""

    directory: Path

    def __call__(self) -> list[int]:
        """Their numbers."""
        text = read_bytes(str(self.directory / "cgroup.procs"))
        if text is None:
            raise Unreadable(f"{self.directory}/cgroup.procs cannot be read")
        return [int(line) for line in text.split()]


@dataclass
class ProcessReader:
    """Samples every process of a tree; the tree itself is looked up every `_RESCAN` reads."""

    tree: Tree
    proc: str = "/proc"
    _pids: list[int] = field(default_factory=list)
    _reads: int = 0
    _RESCAN = 3

    def __call__(self) -> tuple[ProcessSample, ...]:
        """One sample of each; a process that ended meanwhile is left out."""
        if self._reads % self._RESCAN == 0 or not self._pids:
            self._pids = list(self.tree())
        self._reads += 1
        found = [s for pid in self._pids if (s := self._one(pid)) is not None]
        if len(found) < len(self._pids):
            self._pids = []  # somebody ended: look again next time
        return tuple(found)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes last seen."""
        return tuple(self._pids)

    def _one(self, pid: int) -> ProcessSample | None:
        text = read_bytes(f"{self.proc}/{pid}/stat")
        stat = parse_stat(text) if text else None
        status = read_bytes(f"{self.proc}/{pid}/status")
        if stat is None or status is None:
            return None
        return parse_process(pid, stat, status, read_bytes(f"{self.proc}/{pid}/io"))
