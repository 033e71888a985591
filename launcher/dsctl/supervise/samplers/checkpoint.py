"""How much of a checkpoint the engine has read, told from outside, for any way of reading it.

No single counter tells. `read_bytes` of /proc/PID/io misses what comes from the page cache; `rchar`
misses what is mapped; the page cache holds what somebody else has read. So each file is judged by
what the engine does with it, and the largest sign counts:

- a file that is open or mapped no more, or that comes before one that is (engines read shards in
  the order of their names), is done: all of it;
- of a mapped file, the share of evenly spread pages that are in some process's page table
  (`/proc/PID/pagemap`), which ranks fill together; where files are mapped nothing else counts,
  because an engine that maps may also read ahead;
- of a file that is read, the largest position of a descriptor (`/proc/PID/fdinfo`);
- where files are open but neither moves (direct reads at explicit offsets), what the processes
  have read in all since the first file was opened (`rchar`, or `read_bytes`).
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsctl.model.sample import CheckpointSample, ProcessSample
from dsctl.supervise.samplers.proc import read_bytes
from dsctl.supervise.samplers.reader import Unreadable

#: Pages looked at in each mapped file: 1 in 256 is below what a progress bar shows.
_PROBES = 256
_PRESENT = 1 << 63
_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pack")
_POSITION = re.compile(rb"^pos:\s*(\d+)", re.M)


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint. A bind mount keeps inode and name, whatever its path in there."""

    path: str
    name: str
    inode: int
    size_bytes: int


@dataclass(frozen=True)
class Use:
    """What a process does with a shard: pages present of those probed, descriptor position."""

    present: frozenset[int] = frozenset()
    mapped: bool = False
    position: int = 0


def shards_of(places: Iterable[Path]) -> tuple[Shard, ...]:
    """The weight files in directories, and files that are named, in the order engines read them.

    Links, as model caches keep them, are followed.

    Raises:
        Unreadable: there are none.
    """
    found = []
    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if place.is_dir() and not path.name.endswith(_SUFFIXES):
                continue
            try:
                real = path.resolve(strict=True)
                stat = real.stat()
            except OSError:
                continue
            found.append(Shard(str(path), path.name, stat.st_ino, stat.st_size))
    if not found:
        raise Unreadable("the checkpoint has no weight files to follow")
    return tuple(sorted(found, key=lambda shard: _natural(shard.name)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass
class _Ledger:
    """Best amounts by file for one way of reading; a file once used and now let go is done."""

    best: dict[str, int] = field(default_factory=dict)

    def update(self, shards: Sequence[Shard], now: dict[str, int]) -> None:
        """Take the amounts of the files in use now."""
        last = max((i for i, s in enumerate(shards) if s.path in now), default=-1)
        for index, shard in enumerate(shards):
            if shard.path in now:
                amount = min(now[shard.path], shard.size_bytes)
                self.best[shard.path] = max(self.best.get(shard.path, 0), amount)
            elif shard.path in self.best or index < last:
                self.best[shard.path] = shard.size_bytes


@dataclass
class CheckpointProgress:
    """Puts the signs together. Pure: uses in, progress out; it does not go backwards.

    Where an engine maps its files, mapped pages alone count: what is read besides is read ahead.
    """

    shards: Sequence[Shard]
    _mapped: _Ledger = field(default_factory=_Ledger)
    _read: _Ledger = field(default_factory=_Ledger)
    _io_base: int | None = None
    _direct: int = 0

    def update(self, uses: dict[str, list[Use]], io_bytes: int | None) -> CheckpointSample:
        """The progress after one look: uses by path of each shard that is in use now."""
        by_path = {shard.path: shard for shard in self.shards}
        mapped = {
            path: _mapped_bytes(by_path[path], used)
            for path, used in uses.items()
            if any(use.mapped for use in used)
        }
        self._mapped.update(self.shards, mapped)
        self._read.update(self.shards, {p: max(u.position for u in us) for p, us in uses.items()})
        done, how = self._best(uses, io_bytes)
        ledger = self._mapped if self._mapped.best else self._read
        finished = tuple(
            s.path for s in self.shards if s.path in ledger.best and s.path not in uses
        )
        return CheckpointSample.model_construct(
            total_bytes=sum(shard.size_bytes for shard in self.shards),
            read_bytes=done,
            how=how,
            finished=finished,
        )

    def _best(self, uses: dict[str, list[Use]], io_bytes: int | None) -> tuple[int, str]:
        if self._mapped.best:
            return sum(self._mapped.best.values()), "pages of mapped files"
        read = sum(self._read.best.values())
        if uses and io_bytes is not None:
            if self._io_base is None:
                self._io_base = io_bytes
            if not any(use.position for used in uses.values() for use in used):
                total = sum(shard.size_bytes for shard in self.shards)
                self._direct = max(self._direct, min(total, io_bytes - self._io_base))
        if self._direct > read:
            return self._direct, "reads of its processes"
        return read, "positions in open files" if read else "nothing read yet"


def _mapped_bytes(shard: Shard, used: list[Use]) -> int:
    present: set[int] = set()
    for use in used:
        present |= use.present
    return shard.size_bytes * len(present) // _probes_of(shard)


def _probes_of(shard: Shard) -> int:
    return max(1, min(_PROBES, shard.size_bytes // mmap.PAGESIZE))


@dataclass
class CheckpointReader:
    """Looks at what the engine's processes do with the shards of a checkpoint.

    `pids` and `samples` are what the process reader saw last.
    """

    shards: Sequence[Shard]
    pids: Callable[[], Iterable[int]]
    samples: Callable[[], Iterable[ProcessSample]]
    proc: str = "/proc"
    _progress: CheckpointProgress = field(init=False)
    _by_key: dict[tuple[int, str], Shard] = field(init=False)
    _endings: set[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._progress = CheckpointProgress(self.shards)
        self._by_key = {}
        for shard in self.shards:
            self._by_key[(shard.inode, shard.name)] = shard
            self._by_key[(shard.inode, Path(shard.path).resolve().name)] = shard
        self._endings = {name[-12:].encode() for _, name in self._by_key}

    def __call__(self) -> CheckpointSample:
        """One look.

        Raises:
            Unreadable: the processes are not ours to look into.
        """
        uses: dict[str, list[Use]] = {}
        readable = False
        pids = tuple(self.pids())
        for pid in pids:
            maps = read_whole(f"{self.proc}/{pid}/maps")
            if maps is None:
                continue
            readable = True
            for path, use in self._of_process(pid, maps).items():
                uses.setdefault(path, []).append(use)
        if pids and not readable:
            raise Unreadable("the engine's maps cannot be read: it runs as another user")
        return self._progress.update(uses, _io_total(self.samples()))

    def _of_process(self, pid: int, maps: bytes) -> dict[str, Use]:
        mapped: dict[str, set[int]] = {}
        for line in self._lines_of_shards(maps):
            fields = line.split(None, 5)
            if len(fields) < 6 or fields[4] == b"0":
                continue
            shard = self._shard(int(fields[4]), fields[5])
            if shard is not None:
                pages = self._present(pid, fields[0], int(fields[2], 16), shard)
                mapped.setdefault(shard.path, set()).update(pages)
        found = {path: Use(frozenset(pages), mapped=True) for path, pages in mapped.items()}
        for path, position in self._positions(pid).items():
            known = found.get(path, Use())
            found[path] = Use(known.present, known.mapped, max(position, known.position))
        return found

    def _lines_of_shards(self, maps: bytes) -> list[bytes]:
        """The few lines worth parsing of the thousands that an engine has."""
        endings = [ending for ending in self._endings if ending in maps]
        if not endings:
            return []
        return [line for line in maps.split(b"\n") if any(e in line for e in endings)]

    def _shard(self, inode: int, path: bytes) -> Shard | None:
        name = path.rpartition(b"/")[2].decode(errors="replace").removesuffix(" (deleted)")
        return self._by_key.get((inode, name))

    def _present(self, pid: int, span: bytes, offset: int, shard: Shard) -> set[int]:
        """Which of the shard's probes lie in this mapping and are in the page table."""
        first, _, end = span.partition(b"-")
        start, length = int(first, 16), int(end, 16) - int(first, 16)
        probes = _probes_of(shard)
        found: set[int] = set()
        try:
            pagemap = os.open(f"{self.proc}/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return found
        try:
            for probe in range(probes):
                at = shard.size_bytes * probe // probes
                if not offset <= at < offset + length:
                    continue
                entry = os.pread(pagemap, 8, (start + at - offset) // mmap.PAGESIZE * 8)
                if len(entry) == 8 and struct.unpack("=Q", entry)[0] & _PRESENT:
                    found.add(probe)
        except OSError:
            return found
        finally:
            os.close(pagemap)
        return found

    def _positions(self, pid: int) -> dict[str, int]:
        """The largest position of a descriptor in each shard this process has open."""
        found: dict[str, int] = {}
        names = {name for _, name in self._by_key}
        try:
            descriptors = os.listdir(f"{self.proc}/{pid}/fd")  # noqa: PTH208
        except OSError:
            return found
        for number in descriptors:
            link = f"{self.proc}/{pid}/fd/{number}"
            try:
                target = os.readlink(link)  # noqa: PTH115
                if target.rpartition("/")[2] not in names:
                    continue
                inode = os.stat(link).st_ino  # noqa: PTH116
            except OSError:
                continue
            shard = self._shard(inode, target.encode())
            text = read_bytes(f"{self.proc}/{pid}/fdinfo/{number}")
            position = _POSITION.search(text or b"")
            if shard is not None and position is not None:
                found[shard.path] = max(found.get(shard.path, 0), int(position[1]))
        return found


def read_whole(path: str) -> bytes | None:
    """A file of /proc that may be longer than one read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - every microsecond counts
            return file.read()
    except OSError:
        return None


def _io_total(samples: Iterable[ProcessSample]) -> int | None:
    """Bytes the processes have read by calls, or from disk where that is more (direct reads)."""
    known = [max(s.read_chars or 0, s.read_bytes or 0) for s in samples if s.read_chars is not None]
    return sum(known) if known else None
