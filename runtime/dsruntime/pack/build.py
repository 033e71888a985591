"""Builds a pack: streams the checkpoint tensor by tensor, in a directory that is not yet a pack.

Threads take jobs in the order of the checkpoint's bytes; the calling thread syncs what they wrote,
then journals it, and reports. When all is done it is sealed (`seal`): sidecar, rename. Whatever
kills the build, what it left is either no pack or a whole one, and the next build goes on where it
stopped.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsruntime.codec.layout import Correction
from dsruntime.pack import manifest as manifests
from dsruntime.pack.checkpoint import open_checkpoint
from dsruntime.pack.convert import pieces, to_fp4
from dsruntime.pack.digests import digest
from dsruntime.pack.errors import NoSpaceError, PackError, write_failed
from dsruntime.pack.files import exclusive, read_at, sync_directory, write_at
from dsruntime.pack.identity import (
    DigestCache,
    checkpoint_digests,
    digest_tensor,
    ended_inside,
    identity_of,
)
from dsruntime.pack.journal import Done, Journal
from dsruntime.pack.manifest import Manifest, read_manifest
from dsruntime.pack.plan import BuildPlan, Job, PackFile, plan_build
from dsruntime.pack.progress import Meter, Progress, Reporter, human, silent
from dsruntime.pack.seal import publish, seal

UNFINISHED = ".building-"
COMMIT_BYTES = 256 << 20
"""Work lost to a kill, at most, and how often what was written is synced."""


@dataclass(frozen=True)
class Built:
    """A pack, and whether this call made it."""

    directory: Path
    manifest: Manifest
    already_there: bool


def build(
    checkpoint_dir: Path,
    out: Path,
    *,
    tensor_parallel: int = 1,
    correction: Correction = Correction.SPLIT,
    draft: bool = False,
    threads: int | None = None,
    cache: DigestCache | None = None,
    report: Reporter = silent,
) -> Built:
    """Make the pack of a checkpoint under `out`, or find it there.

    Peak memory: per thread, one expert matrix and its planes. Two builds of the same pack: one
    works, the other waits and finds it made.

    Raises:
        PackError: bad checkpoint, no room, unwritable directory; one line and a remedy.
    """
    plan = plan_build(
        open_checkpoint(checkpoint_dir),
        tensor_parallel=tensor_parallel,
        correction=correction,
        draft=draft,
    )
    cache = cache or DigestCache(None)
    lock = out / f".lock-{plan.key[:12]}"

    def waiting(holder: str) -> None:
        who = f"process {holder}" if holder else "another process"
        report(Progress(f"{who} is building this pack; waiting for it"))

    try:
        out.mkdir(parents=True, exist_ok=True)
        with exclusive(lock, waiting):
            found = _finished(plan, out, cache, report)
            if found is not None:
                return found
            return _Build(plan, out, threads, cache, report).run()
    except OSError as error:
        raise write_failed(error, Path(error.filename) if error.filename else out) from None


def _finished(plan: BuildPlan, out: Path, cache: DigestCache, report: Reporter) -> Built | None:
    """A whole pack of exactly this checkpoint's content under `out`."""
    for path in sorted(out.glob(f"pack-*/{manifests.NAME}")):
        try:
            manifest = read_manifest(path.parent)
        except PackError:
            continue
        if manifest.plan != plan.key:
            continue
        digests = checkpoint_digests(plan.checkpoint, cache, known=manifest, report=report)
        if identity_of(plan.checkpoint, digests) == manifest.source.identity:
            return Built(path.parent, manifest, already_there=True)
    return None


class _Build:
    """One run of a build, under the lock."""

    def __init__(
        self, plan: BuildPlan, out: Path, threads: int | None, cache: DigestCache, report: Reporter
    ) -> None:
        self._plan = plan
        self._out = out
        self._directory = out / f"{UNFINISHED}{plan.key[:12]}"
        self._threads = threads or min(os.cpu_count() or 1, 8)
        self._cache = cache
        self._report = report
        self._done: dict[int, Done] = {}
        self._fresh: list[Done] = []
        self._fresh_bytes = 0
        self._done_bytes = 0
        self._failure: BaseException | None = None
        self._stop = False
        self._changed = threading.Condition()
        self._sources: dict[str, int] = {}
        self._targets: dict[str, int] = {}

    def run(self) -> Built:
        usable = self._open_files()
        journal = Journal(self._directory, self._plan)
        try:
            self._done = journal.open(usable=usable)
            self._done_bytes = sum(self._plan.jobs[i].size_bytes for i in self._done)
            if self._done:
                self._report(Progress(f"going on after {human(self._done_bytes)}"))
            self._work(journal)
            self._sync()
            manifest = seal(self._plan, self._done, self._directory, self._cache)
            journal.remove()
        finally:
            journal.close()
            for descriptor in (*self._sources.values(), *self._targets.values()):
                os.close(descriptor)
        directory = publish(self._plan, manifest, self._directory, self._out)
        return Built(directory, manifest, already_there=False)

    def _open_files(self) -> bool:
        """Open shards and data files; whether the data files were there, whole in size."""
        geometry = self._plan.geometry
        self._directory.mkdir(exist_ok=True)
        (self._directory / manifests.NAME).unlink(missing_ok=True)
        paths = {file: self._directory / file.name for file in geometry.files}
        usable = all(p.exists() and p.stat().st_size == f.size_bytes for f, p in paths.items())
        held = sum(p.stat().st_blocks * 512 for p in paths.values() if p.exists())
        require_room(self._out, geometry.size_bytes - held)
        for shard in self._plan.checkpoint.shards:
            self._sources[shard.name] = os.open(shard.path, os.O_RDONLY)
        for file, path in paths.items():
            flags = os.O_RDWR | os.O_CREAT | (0 if usable else os.O_TRUNC)
            self._targets[file.name] = os.open(path, flags, 0o644)
            try:
                os.ftruncate(self._targets[file.name], file.size_bytes)
            except OSError as error:
                raise write_failed(error, path) from None
        sync_directory(self._directory)
        return usable

    def _work(self, journal: Journal) -> None:
        waiting = iter([i for i in range(len(self._plan.jobs)) if i not in self._done])
        taking = threading.Lock()
        meter = Meter("packing experts", self._plan.read_bytes, self._report)
        meter.update(self._done_bytes)
        threads = [
            threading.Thread(target=self._worker, args=(waiting, taking), daemon=True)
            for _ in range(self._threads)
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                with self._changed:
                    self._changed.wait(0.25)
                meter.update(self._done_bytes)
                if self._fresh_bytes >= COMMIT_BYTES:
                    self._commit(journal)
        finally:
            self._stop = True
            for thread in threads:
                thread.join()
            # What was done until here stays done, also when we were interrupted or a job failed.
            self._commit(journal, quiet=self._failure is not None)
        if self._failure is not None:
            raise self._failure
        meter.update(self._done_bytes, final=True)

    def _worker(self, waiting: Iterator[int], taking: threading.Lock) -> None:
        buffers = _Buffers()
        while not self._stop:
            with taking:
                number = next(waiting, None)
            if number is None:
                break
            job = self._plan.jobs[number]
            try:
                done = self._perform(number, job, buffers)
            except BaseException as error:
                self._failure = self._failure or error
                self._stop = True
                break
            with self._changed:
                self._fresh.append(done)
                self._fresh_bytes += 2 * job.size_bytes
                self._done_bytes += job.size_bytes
                self._changed.notify()

    def _perform(self, number: int, job: Job, buffers: _Buffers) -> Done:
        if job.source is None or job.row is None or job.matrix is None:
            tensor = job.tensors[0]
            return Done(number, (digest_tensor(self._sources[tensor.shard], tensor),), ())
        raw = []
        for place, tensor in enumerate(job.tensors):
            buffer = buffers.take(place, tensor.size_bytes)
            if read_at(self._sources[tensor.shard], buffer, tensor.offset) != len(buffer):
                raise ended_inside(tensor)
            raw.append(buffer)
        geometry = self._plan.geometry
        written = []
        for piece in pieces(job.matrix, to_fp4(job.source, raw), geometry):
            file = PackFile(piece.kind, piece.rank, geometry)
            at = job.row * file.layout.stride_bytes + file.layout.segments[piece.segment].offset
            try:
                write_at(self._targets[file.name], piece.data, at)
            except OSError as error:
                raise write_failed(error, self._directory / file.name) from None
            written.append(digest(piece.data))
        return Done(number, tuple(digest(buffer) for buffer in raw), tuple(written))

    def _commit(self, journal: Journal, *, quiet: bool = False) -> None:
        """Sync, then journal what was written before the sync began."""
        with self._changed:
            fresh, self._fresh, self._fresh_bytes = self._fresh, [], 0
        try:
            self._sync()
            journal.append(fresh)
        except (OSError, PackError):  # the first failure is the one to tell
            if not quiet:
                raise
        self._done |= {done.job: done for done in fresh}

    def _sync(self) -> None:
        for name, descriptor in self._targets.items():
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise write_failed(error, self._directory / name) from None


class _Buffers:
    """Read buffers of one thread, kept from job to job."""

    def __init__(self) -> None:
        self._kept: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}

    def take(self, place: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        kept = self._kept.get(place)
        if kept is None or len(kept) < size:
            kept = self._kept[place] = np.empty(size, np.uint8)
        return kept[:size]


def require_room(directory: Path, need_bytes: int) -> None:
    """Refuse before the first byte is written.

    Raises:
        NoSpaceError: the disk of `directory` has less than `need_bytes` free.
    """
    free = shutil.disk_usage(directory).free
    need = need_bytes + need_bytes // 200 + (1 << 20)  # file system metadata, the sidecar
    if free < need:
        raise NoSpaceError(
            f"no room for the pack: {directory} has {human(free)} free, "
            f"{human(need)} more are needed",
            remedy="free some space (old packs: `dsctl pack prune`), or choose another --out",
        )
