"""The arena: a bounded part of host memory that keeps base rows beside their pack.

It keeps the rows fetched last, for a row that a decode step had to fetch is likely to be fetched
again when it has been displaced from the device. A *scan* (a prompt, which asks for nearly every
expert once) takes what it finds and fills what is empty, but displaces nothing and makes nothing
younger: however long the prompt, what decoding needs is still there after it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsruntime.tiers.hostmem import HostMemory

Bytes = npt.NDArray[np.uint8]
Read = Callable[[int, Bytes], None]
"""Fill a buffer with the row of a key, verified; raises what it cannot."""


@dataclass(frozen=True)
class Wanted:
    """A row to bring to ``out`` [row_bytes]."""

    key: int
    out: Bytes


@dataclass
class ArenaCounters:
    """Rows asked for: found here, or read from the pack; and bytes read from it."""

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0


@dataclass(frozen=True)
class _Job:
    """One row of a batch: read it into ``into`` (if it is not there), then copy it to ``out``."""

    wanted: Wanted
    into: Bytes
    found: bool


class Arena:
    """Brings rows in batches, reading side by side. Thread-safe: one batch at a time."""

    def __init__(self, memory: HostMemory, read: Read, threads: int = 4) -> None:
        self.memory = memory
        self.counters = ArenaCounters()
        self._read = read
        self._rows: OrderedDict[int, int] = OrderedDict()  # key -> row, oldest first
        self._free = list(range(len(memory.rows)))[::-1]
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="dsruntime-fetch")

    def __contains__(self, key: int) -> bool:
        return key in self._rows

    @property
    def keys(self) -> tuple[int, ...]:
        """The rows here, that fetched longest ago first."""
        return tuple(self._rows)

    def fetch(self, batch: Sequence[Wanted], *, scan: bool = False) -> dict[int, Exception]:
        """Fill every ``out``; what went wrong, by key. A row that failed is not kept."""
        with self._lock:
            jobs = self._plan(batch, scan)
            failed = {
                job.wanted.key: error
                for job, error in zip(jobs, self._readers.map(self._run, jobs), strict=True)
                if error is not None
            }
            for job in jobs:
                key = job.wanted.key
                if key not in failed:
                    self.counters.read_bytes += 0 if job.found else job.wanted.out.nbytes
                elif key in self._rows:
                    self._free.append(self._rows.pop(key))
        return failed

    def close(self) -> None:
        """Stop the reading threads."""
        self._readers.shutdown(cancel_futures=True)

    def _plan(self, batch: Sequence[Wanted], scan: bool) -> list[_Job]:
        found = {wanted.key for wanted in batch if wanted.key in self._rows}
        if not scan:
            for key in found:  # before any is displaced: none of this batch may be
                self._rows.move_to_end(key)
        self.counters.hits += len(found)
        self.counters.misses += len(batch) - len(found)
        keys = {wanted.key for wanted in batch}
        jobs = []
        for wanted in batch:
            if wanted.key in found:
                row: int | None = self._rows[wanted.key]
            else:
                row = self._place(wanted.key, keys, scan)
            into = wanted.out if row is None else self.memory.rows[row]
            jobs.append(_Job(wanted, into, wanted.key in found))
        return jobs

    def _place(self, key: int, batch_keys: set[int], scan: bool) -> int | None:
        """A row of the arena for ``key``: an empty one, or the oldest outside this batch."""
        if self._free:
            row = self._free.pop()
        elif scan or not self._rows or (oldest := next(iter(self._rows))) in batch_keys:
            return None
        else:
            row = self._rows.pop(oldest)
        self._rows[key] = row
        if scan:
            self._rows.move_to_end(key, last=False)  # the first to go when decoding needs room
        return row

    def _run(self, job: _Job) -> Exception | None:
        try:
            if not job.found:
                self._read(job.wanted.key, job.into)
            if job.into is not job.wanted.out:
                np.copyto(job.wanted.out, job.into)
        except Exception as error:  # told to whoever waits for the row, never lost in a thread
            return error
        return None
