"""What lies under a pack directory: packs, unfinished builds, and which of them are old."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dsruntime.pack import manifest as manifests
from dsruntime.pack.build import UNFINISHED
from dsruntime.pack.errors import PackError
from dsruntime.pack.files import is_locked
from dsruntime.pack.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class Entry:
    """One directory: a pack (`manifest`), or why it is none; `old` says why it can go."""

    path: Path
    size_bytes: int
    manifest: Manifest | None
    problem: str | None
    in_use: bool
    old: str | None = None


def list_entries(out: Path) -> list[Entry]:
    """Every pack and unfinished build directly under `out`, with what makes some of them old.

    Of packs for the same geometry, ranks and correction the newest stays. Packs in use (an engine
    has them open) and builds in progress are never old.
    """
    entries = [_entry(p) for p in sorted(out.glob("pack-*")) if p.is_dir()]
    newest: dict[tuple[object, ...], str] = {}
    for entry in entries:
        if entry.manifest is not None:
            group = _group(entry.manifest)
            newest[group] = max(newest.get(group, ""), entry.manifest.built_at + str(entry.path))
    marked = [_with_age(entry, newest) for entry in entries]
    for path in sorted(out.glob(f"{UNFINISHED}*")):
        busy = is_locked(_build_lock(path))
        reason = None if busy else "unfinished build"
        marked.append(Entry(path, _size(path), None, "unfinished", busy, reason))
    return marked


def remove(entries: Iterable[Entry]) -> int:
    """Delete entries that are old; bytes freed. The sidecar goes first: no half pack is left."""
    freed = 0
    for entry in entries:
        sidecar = entry.path / manifests.NAME
        if entry.old is None or is_locked(sidecar) or is_locked(_build_lock(entry.path)):
            continue
        sidecar.unlink(missing_ok=True)
        shutil.rmtree(entry.path)
        freed += entry.size_bytes
    return freed


def _build_lock(path: Path) -> Path:
    return path.with_name(path.name.replace(UNFINISHED, ".lock-"))


def _entry(path: Path) -> Entry:
    in_use = is_locked(path / manifests.NAME)
    try:
        return Entry(path, _size(path), read_manifest(path), None, in_use)
    except PackError as error:
        return Entry(path, _size(path), None, error.message, in_use)


def _with_age(entry: Entry, newest: dict[tuple[object, ...], str]) -> Entry:
    if entry.in_use:
        return entry
    if entry.manifest is None:
        old: str | None = "not usable"
    elif newest[_group(entry.manifest)] != entry.manifest.built_at + str(entry.path):
        old = "a newer one has the same geometry"
    else:
        old = None
    return Entry(entry.path, entry.size_bytes, entry.manifest, entry.problem, entry.in_use, old)


def _group(manifest: Manifest) -> tuple[object, ...]:
    return (manifest.model, manifest.tensor_parallel, manifest.correction)


def _size(path: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in path.iterdir() if p.is_file())
