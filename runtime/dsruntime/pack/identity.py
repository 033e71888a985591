"""Which checkpoint this is, by content: a copy, chmod, touch, rename of the directory or another
mount is the same checkpoint; one changed byte is another.

A shard's digest is made from its header's and its tensors' digests, so that a build computes it
from what it reads anyway. Digests are remembered by inode, size, mtime and header, in a cache file
and in the pack's own sidecar: an unchanged shard is not read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dsruntime.pack.checkpoint import Checkpoint
from dsruntime.pack.digests import Running, canonical, combined, digest
from dsruntime.pack.errors import CheckpointError, StaleError
from dsruntime.pack.files import read_at, write_atomically
from dsruntime.pack.manifest import Manifest
from dsruntime.pack.progress import Meter, Reporter, silent
from dsruntime.pack.shards import Shard, Tensor

_CHUNK_BYTES = 8 << 20
_CACHE_ENTRIES = 4096


def default_cache() -> Path:
    """Where digests are remembered (`XDG_CACHE_HOME` respected)."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "dsctl" / "shard-digests.json"


class DigestCache:
    """Digests by how a shard looks. A cache that cannot be read or written costs time, no more."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        if path is not None:
            try:
                found = json.loads(path.read_text())
                self._known = {str(k): str(v) for k, v in found.items()}
            except (OSError, ValueError, AttributeError):
                self._known = {}

    def get(self, shard: Shard) -> str | None:
        return self._known.get(shard.seen)

    def put(self, digests: Mapping[str, str]) -> None:
        """Remember digests by `Shard.seen`, and save."""
        fresh = {k: v for k, v in digests.items() if self._known.get(k) != v}
        if not fresh:
            return
        self._known |= fresh
        if self._path is None:
            return
        newest = dict(list(self._known.items())[-_CACHE_ENTRIES:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(newest) + "\n")
        except OSError:
            return


def shard_digest(shard: Shard, tensor_digests: Iterable[str]) -> str:
    """From the header's digest and the tensors' digests in order of offset."""
    return combined([shard.header_digest, *tensor_digests])


def identity_of(checkpoint: Checkpoint, digests: Mapping[str, str]) -> str:
    """From configuration, index and the digests of all shards by name."""
    content = {
        "config": checkpoint.config,
        "weight_map": checkpoint.weight_map,
        "shards": dict(digests),
    }
    return digest(canonical(content))


def digest_tensor(descriptor: int, tensor: Tensor) -> str:
    """Read a tensor in chunks and digest it.

    Raises:
        CheckpointError: the shard ends inside it.
    """
    running = Running()
    buffer = np.empty(min(_CHUNK_BYTES, max(tensor.size_bytes, 1)), np.uint8)
    at = 0
    while at < tensor.size_bytes:
        part = buffer[: min(len(buffer), tensor.size_bytes - at)]
        if read_at(descriptor, part, tensor.offset + at) != len(part):
            raise ended_inside(tensor)
        running.update(part)
        at += len(part)
    return running.result()


def ended_inside(tensor: Tensor) -> CheckpointError:
    """The shard became shorter since its header was read."""
    return CheckpointError(
        f"checkpoint shard {tensor.shard} ends inside {tensor.name}",
        remedy="do not change the checkpoint while it is read; fetch that shard again",
    )


def checkpoint_digests(
    checkpoint: Checkpoint,
    cache: DigestCache,
    *,
    known: Manifest | None = None,
    report: Reporter = silent,
    threads: int | None = None,
) -> dict[str, str]:
    """Digest of every shard by name, reading only those that neither cache nor manifest knows."""
    remembered = {s.seen: s.digest for s in known.source.shards} if known else {}
    found: dict[str, str] = {}
    unknown = []
    for shard in checkpoint.shards:
        value = remembered.get(shard.seen) or cache.get(shard)
        if value is None:
            unknown.append(shard)
        else:
            found[shard.name] = value
    meter = Meter("checking the checkpoint", sum(s.size_bytes for s in unknown), report)
    done = 0
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8)) as pool:
        for shard in unknown:
            descriptor = os.open(shard.path, os.O_RDONLY)
            try:
                digests = []
                for tensor, value in zip(
                    shard.tensors,
                    pool.map(lambda t, fd=descriptor: digest_tensor(fd, t), shard.tensors),
                    strict=True,
                ):
                    digests.append(value)
                    done += tensor.size_bytes
                    meter.update(done)
            finally:
                os.close(descriptor)
            found[shard.name] = shard_digest(shard, digests)
            cache.put({shard.seen: found[shard.name]})
    return {shard.name: found[shard.name] for shard in checkpoint.shards}


def require_same(manifest: Manifest, checkpoint: Checkpoint, digests: Mapping[str, str]) -> None:
    """Check that the pack was made from this checkpoint.

    Raises:
        StaleError: it was not; names what differs.
    """
    if identity_of(checkpoint, digests) == manifest.source.identity:
        return
    before = {s.name: s.digest for s in manifest.source.shards}
    changed = sorted(n for n in before.keys() | digests.keys() if before.get(n) != digests.get(n))
    what = f"{changed[0]} differs" if changed else "config.json or the index differs"
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    raise StaleError(
        f"the pack was made from another checkpoint than {checkpoint.directory}: {what}{more}",
        remedy="build a pack for this checkpoint with `dsctl pack build`",
    )
