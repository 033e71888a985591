"""Makes a finished build a pack: its sidecar, and its name. Before both, nothing is one."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from dsruntime.codec import CODEC_ID
from dsruntime.codec.layout import Matrix
from dsruntime.pack import manifest as manifests
from dsruntime.pack.digests import combined
from dsruntime.pack.errors import CheckpointError
from dsruntime.pack.files import sync_directory
from dsruntime.pack.identity import DigestCache, identity_of, shard_digest
from dsruntime.pack.journal import Done
from dsruntime.pack.manifest import Manifest, write_manifest
from dsruntime.pack.plan import BUILDER, BuildPlan, Kind, PackFile

_KINDS: tuple[Kind, ...] = ("base", "correction")


def seal(
    plan: BuildPlan, done: Mapping[int, Done], directory: Path, cache: DigestCache
) -> Manifest:
    """Write the sidecar of a build whose jobs are all done and synced.

    Raises:
        CheckpointError: a shard is no longer the one that was planned with.
    """
    _require_unchanged(plan)
    digests = _shard_digests(plan, done)
    cache.put({s.seen: digests[s.name] for s in plan.checkpoint.shards})
    geometry = plan.geometry
    rows = row_digests(plan, done)
    files = tuple(
        manifests.FileRecord(
            name=file.name,
            kind=file.kind,
            rank=file.rank,
            slot_bytes=file.layout.size_bytes,
            stride_bytes=file.layout.stride_bytes,
            size_bytes=file.size_bytes,
            rows=rows[file.name],
        )
        for file in geometry.files
    )
    formats = Counter(str(j.source.format) for j in plan.jobs if j.source is not None)
    manifest = Manifest(
        codec=CODEC_ID,
        built_by=BUILDER,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        plan=plan.key,
        model=manifests.Model(
            layers=geometry.layers,
            experts=geometry.experts,
            hidden=geometry.hidden,
            intermediate=geometry.intermediate,
        ),
        tensor_parallel=geometry.tensor_parallel,
        correction=geometry.correction,
        source=manifests.Source(
            identity=identity_of(plan.checkpoint, digests),
            formats=dict(formats),
            shards=tuple(
                manifests.ShardRecord(
                    name=s.name, size_bytes=s.size_bytes, digest=digests[s.name], seen=s.seen
                )
                for s in plan.checkpoint.shards
            ),
        ),
        files=files,
    ).sealed()
    write_manifest(directory, manifest)
    return manifest


def publish(plan: BuildPlan, manifest: Manifest, directory: Path, out: Path) -> Path:
    """Give the sealed directory its name under `out`; an unusable one of that name makes way."""
    geometry = plan.geometry
    target = out / (
        f"pack-{manifest.source.identity[:12]}-tp{geometry.tensor_parallel}-{geometry.correction}"
    )
    if len(geometry.layers) and geometry.layers[-1].startswith("mtp"):
        target = target.with_name(target.name + "-draft")
    if target.exists():
        shutil.rmtree(target)
    directory.rename(target)
    sync_directory(out)
    return target


def _require_unchanged(plan: BuildPlan) -> None:
    for shard in plan.checkpoint.shards:
        status = shard.path.stat()
        if f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}" not in shard.seen:
            raise CheckpointError(
                f"checkpoint shard {shard.path} changed while it was packed",
                remedy="let whatever writes it finish, then run the build again",
            )


def _shard_digests(plan: BuildPlan, done: Mapping[int, Done]) -> dict[str, str]:
    by_tensor = {
        tensor.name: value
        for number, finished in done.items()
        for tensor, value in zip(plan.jobs[number].tensors, finished.tensors, strict=True)
    }
    return {
        shard.name: shard_digest(shard, (by_tensor[t.name] for t in shard.tensors))
        for shard in plan.checkpoint.shards
    }


def row_digests(plan: BuildPlan, done: Mapping[int, Done]) -> dict[str, tuple[str, ...]]:
    """Digest of every row by file: made from its segments' digests in order of offset."""
    geometry = plan.geometry
    parts = {
        file.name: [[""] * len(file.layout.segments) for _ in range(geometry.rows)]
        for file in geometry.files
    }
    places = piece_places(plan)
    for number, finished in done.items():
        job = plan.jobs[number]
        if job.row is None or job.matrix is None:
            continue
        for (name, segment), value in zip(places[job.matrix], finished.pieces, strict=True):
            parts[name][job.row][segment] = value
    return {name: tuple(combined(row) for row in rows) for name, rows in parts.items()}


def piece_places(plan: BuildPlan) -> dict[Matrix, list[tuple[str, int]]]:
    """For each matrix, file and segment of its pieces in the order `pieces` makes them."""
    geometry = plan.geometry
    places: dict[Matrix, list[tuple[str, int]]] = {}
    for matrix in Matrix:
        found = []
        for kind in _KINDS:
            for number, segment in enumerate(geometry.layout(kind).segments):
                if segment.matrix is matrix:
                    for rank in range(geometry.tensor_parallel):
                        found.append((PackFile(kind, rank, geometry).name, number))
        places[matrix] = found
    return places
