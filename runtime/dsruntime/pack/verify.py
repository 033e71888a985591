"""Checks rows of a pack against their checksums: all, or a sample."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsruntime.pack.files import read_at
from dsruntime.pack.manifest import FileRecord, Manifest, read_manifest
from dsruntime.pack.progress import Meter, Reporter, silent
from dsruntime.pack.reader import repair_rows, row_digest, row_name

Row = tuple[FileRecord, int]


@dataclass(frozen=True)
class Verified:
    """How many rows were checked, which were bad, and which of those were made again."""

    manifest: Manifest
    checked: int
    of: int
    bad: tuple[str, ...]
    repaired: tuple[str, ...]

    @property
    def good(self) -> bool:
        return len(self.bad) == len(self.repaired)


def verify(
    directory: Path,
    *,
    sample: int | None = None,
    seed: int = 0,
    repair_from: Path | None = None,
    threads: int | None = None,
    report: Reporter = silent,
) -> Verified:
    """Check every row, or `sample` rows chosen by `seed`.

    Raises:
        PackError: no pack, sidecar damaged, or a repair that the checkpoint cannot give.
    """
    manifest = read_manifest(directory)
    rows = [(record, n) for record in manifest.files for n in range(len(record.rows))]
    chosen = rows
    if sample is not None and sample < len(rows):
        chosen = [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), sample))]
    bad = _bad_rows(directory, manifest, chosen, threads, report)
    repaired: list[str] = []
    if bad and repair_from is not None:
        repair_rows(directory, manifest, bad, repair_from, repaired.append)
        bad_still = _bad_rows(directory, manifest, bad, threads, silent)
        still = {row_name(manifest.geometry, *row) for row in bad_still}
        repaired = [name for name in repaired if name not in still]
    names = tuple(row_name(manifest.geometry, *row) for row in bad)
    return Verified(manifest, len(chosen), len(rows), names, tuple(repaired))


def _bad_rows(
    directory: Path, manifest: Manifest, rows: list[Row], threads: int | None, report: Reporter
) -> list[Row]:
    geometry = manifest.geometry
    descriptors = {r.name: os.open(directory / r.name, os.O_RDONLY) for r in manifest.files}

    def is_good(row: Row) -> bool:
        record, number = row
        buffer = np.empty(record.slot_bytes, np.uint8)
        at = number * record.stride_bytes
        whole = read_at(descriptors[record.name], buffer, at) == len(buffer)
        return whole and row_digest(geometry.layout(record.kind), buffer) == record.rows[number]

    meter = Meter("verifying rows", sum(record.slot_bytes for record, _ in rows), report)
    bad, done = [], 0
    try:
        with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8)) as pool:
            for row, good in zip(rows, pool.map(is_good, rows), strict=True):
                done += row[0].slot_bytes
                meter.update(done, final=done == meter.total)
                if not good:
                    bad.append(row)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return bad
