"""What an unfinished build has done, so that a killed one goes on where it stopped.

A line is written only after the bytes it speaks of have been synced to the disk; a line that is
torn (no newline, not JSON) and everything after it is dropped. The first line names the plan and
what each shard looked like: the work done from a shard that looks different now is done again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsruntime.pack.files import sync_directory, write_at, write_atomically
from dsruntime.pack.plan import BuildPlan

NAME = "journal.jsonl"


@dataclass(frozen=True)
class Done:
    """A finished job: digests of the tensors it read, and of the pieces it wrote."""

    job: int
    tensors: tuple[str, ...]
    pieces: tuple[str, ...]


class Journal:
    """The journal of one build, open for appending."""

    def __init__(self, directory: Path, plan: BuildPlan) -> None:
        self._path = directory / NAME
        self._plan = plan
        self._descriptor = -1
        self._end = 0

    def open(self, *, usable: bool) -> dict[int, Done]:
        """What is done already; `usable` False: the data files are not those of the journal."""
        done = self._read() if usable else {}
        head = {"plan": self._plan.key, "shards": _looks(self._plan)}
        lines = [json.dumps(head), *(_line(d) for d in done.values())]
        write_atomically(self._path, "\n".join(lines) + "\n")
        self._descriptor = os.open(self._path, os.O_WRONLY)
        self._end = os.fstat(self._descriptor).st_size
        return done

    def append(self, done: list[Done]) -> None:
        """Record jobs whose bytes are on the disk."""
        if not done:
            return
        data = "".join(_line(d) + "\n" for d in done).encode()
        write_at(self._descriptor, data, self._end)
        os.fdatasync(self._descriptor)
        self._end += len(data)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """The build is finished."""
        self.close()
        self._path.unlink()
        sync_directory(self._path.parent)

    def _read(self) -> dict[int, Done]:
        try:
            lines = self._path.read_bytes().split(b"\n")[:-1]
        except OSError:
            return {}
        entries = _parsed(lines)
        if not entries or not isinstance(entries[0], dict):
            return {}
        head = entries[0]
        if head.get("plan") != self._plan.key:
            return {}
        before, now = head.get("shards", {}), _looks(self._plan)
        same = {name for name, look in now.items() if before.get(name) == look}
        done = {}
        for entry in entries[1:]:
            found = _done(entry, self._plan)
            if found is None:
                break
            if all(t.shard in same for t in self._plan.jobs[found.job].tensors):
                done[found.job] = found
        return done


def _looks(plan: BuildPlan) -> dict[str, str]:
    return {shard.name: shard.seen for shard in plan.checkpoint.shards}


def _line(done: Done) -> str:
    return json.dumps([done.job, done.tensors, done.pieces], separators=(",", ":"))


def _parsed(lines: list[bytes]) -> list[Any]:
    found = []
    for text in lines:
        try:
            found.append(json.loads(text))
        except ValueError:
            break
    return found


def _done(entry: Any, plan: BuildPlan) -> Done | None:
    try:
        job, tensors, pieces = entry
        done = Done(int(job), tuple(map(str, tensors)), tuple(map(str, pieces)))
        whole = 0 <= done.job < len(plan.jobs) and len(done.tensors) == len(
            plan.jobs[done.job].tensors
        )
    except (TypeError, ValueError):
        return None
    return done if whole else None
