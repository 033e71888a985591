"""Serves rows of a pack to the engine, never a wrong one.

A row's checksum is verified the first time it is read. A row that fails is made again from the
checkpoint, if that is there and is the right one, and written back where the pack is writable;
otherwise the error names it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dsruntime.codec.layout import Correction, Matrix, RowLayout
from dsruntime.pack import manifest as manifests
from dsruntime.pack.checkpoint import Checkpoint, open_checkpoint
from dsruntime.pack.convert import pieces, to_fp4
from dsruntime.pack.digests import combined, digest
from dsruntime.pack.errors import CorruptError, PackError
from dsruntime.pack.files import read_at, write_at
from dsruntime.pack.identity import ended_inside
from dsruntime.pack.manifest import FileRecord, Manifest, read_manifest
from dsruntime.pack.plan import Geometry, Kind, PackFile

Bytes = npt.NDArray[np.uint8]
logger = logging.getLogger("dsruntime.pack")


class Check(StrEnum):
    """When a row's checksum is verified."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


class PackReader:
    """Rows of one rank. Thread-safe; a shared lock keeps `pack prune` away while it is open.

    Raises:
        PackError: no pack, damaged, made for another codec or fewer ranks.
    """

    def __init__(
        self,
        directory: Path,
        rank: int = 0,
        *,
        check: Check = Check.FIRST,
        checkpoint: Path | None = None,
    ) -> None:
        self.directory = directory
        self.manifest: Manifest = read_manifest(directory)
        self.rank = rank
        self.geometry: Geometry = self.manifest.geometry
        self._check = check
        self._checkpoint = checkpoint
        self._repairing = threading.Lock()
        self._records: dict[Kind, FileRecord] = {"base": self.manifest.file("base", rank)}
        if self.manifest.correction is not Correction.NONE:
            self._records["correction"] = self.manifest.file("correction", rank)
        self._verified = {kind: bytearray(self.geometry.rows) for kind in self._records}
        self._lock = os.open(directory / manifests.NAME, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._descriptors = {
            kind: os.open(directory / record.name, os.O_RDONLY)
            for kind, record in self._records.items()
        }

    def __enter__(self) -> PackReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """Of the checkpoint's content."""
        return self.manifest.source.identity

    def close(self) -> None:
        """Release files and lock."""
        for descriptor in (*self._descriptors.values(), self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors, self._lock = {}, -1

    def layer_index(self, name: str) -> int:
        """Row block of a layer by its name in the checkpoint (`layers.3`, `mtp.0`)."""
        return self.geometry.layers.index(name)

    def base(self, layer: int, expert: int, out: Bytes | None = None) -> Bytes:
        """The base row [codes13 | scales13 | codes2 | scales2] as flat bytes, into `out` if given.

        Raises:
            CorruptError: its bytes are wrong and it could not be made again.
        """
        return self._row("base", layer, expert, out)

    def correction(self, layer: int, expert: int, out: Bytes | None = None) -> Bytes:
        """The correction row, without scales; `StaleError` where the pack has none."""
        self.manifest.file("correction", self.rank)
        return self._row("correction", layer, expert, out)

    def standing_slot(self, layer: int, expert: int, out: Bytes | None = None) -> Bytes:
        """The correction with its own scales, for a slot that outlives its base (12.75 MiB)."""
        slot = self.geometry.shape.correction(self.manifest.correction, own_scales=True)
        out = np.empty(slot.size_bytes, np.uint8) if out is None else out
        planes = slot.views(out)
        for kind in ("base", "correction"):
            row = self._row(kind, layer, expert, None)
            for name, plane in self.geometry.layout(kind).views(row).items():
                if name in planes:
                    planes[name][:] = plane
        return out

    def layout(self, kind: Kind) -> RowLayout:
        """Where the planes of a row are."""
        return self.geometry.layout(kind)

    def _row(self, kind: Kind, layer: int, expert: int, out: Bytes | None) -> Bytes:
        if not (0 <= layer < len(self.geometry.layers) and 0 <= expert < self.geometry.experts):
            raise IndexError(f"layer {layer}, expert {expert}")
        record = self._records[kind]
        number = layer * self.geometry.experts + expert
        out = np.empty(record.slot_bytes, np.uint8) if out is None else out
        count = read_at(self._descriptors[kind], out, number * record.stride_bytes)
        if self._check is Check.NEVER and count == len(out):
            return out
        if self._check is Check.FIRST and self._verified[kind][number] and count == len(out):
            return out
        if row_digest(self.layout(kind), out) != record.rows[number]:
            with self._repairing:
                out[:] = self._made_again(record, number)
        self._verified[kind][number] = 1
        return out

    def _made_again(self, record: FileRecord, number: int) -> Bytes:
        name = row_name(self.geometry, record, number)
        if self._checkpoint is None:
            raise CorruptError(
                f"{self.directory / record.name}: {name} is damaged (checksum)",
                remedy=f"`dsctl pack verify {self.directory} --repair --checkpoint DIR`",
            )
        fixed = repair_rows(self.directory, self.manifest, [(record, number)], self._checkpoint)
        logger.warning(
            "%s: %s was damaged and has been made again from the checkpoint", record.name, name
        )
        return fixed[0]


def row_digest(layout: RowLayout, row: Bytes) -> str:
    """From the segments' digests in order of offset; padding is not covered."""
    return combined([digest(row[s.offset : s.offset + s.size_bytes]) for s in layout.segments])


def row_name(geometry: Geometry, record: FileRecord, number: int) -> str:
    """A row for people."""
    layer, expert = divmod(number, geometry.experts)
    return f"{record.kind} of {geometry.layers[layer]} expert {expert} (rank {record.rank})"


def make_row(
    checkpoint: Checkpoint, geometry: Geometry, kind: Kind, rank: int, number: int
) -> Bytes:
    """One row from the checkpoint's tensors.

    Raises:
        CheckpointError: its tensors are absent or damaged.
    """
    layer, expert = divmod(number, geometry.experts)
    file = PackFile(kind, rank, geometry)
    row = np.zeros(file.layout.size_bytes, np.uint8)
    for matrix in Matrix:
        source = checkpoint.experts[geometry.layers[layer], expert, matrix]
        raw = [_read_tensor(checkpoint, t.shard, t.offset, t.size_bytes) for t in source.tensors]
        for tensor, data in zip(source.tensors, raw, strict=True):
            if len(data) != tensor.size_bytes:
                raise ended_inside(tensor)
        for piece in pieces(matrix, to_fp4(source, raw), geometry):
            if (piece.kind, piece.rank) == (kind, rank):
                segment = file.layout.segments[piece.segment]
                at = slice(segment.offset, segment.offset + segment.size_bytes)
                row[at] = piece.data.reshape(-1)
    return row


def repair_rows(
    directory: Path,
    manifest: Manifest,
    bad: list[tuple[FileRecord, int]],
    checkpoint_dir: Path,
    on_row: Callable[[str], None] = lambda _: None,
) -> list[Bytes]:
    """Make rows again, check them against the manifest, write them back where that is possible.

    A read-only pack still gives the right bytes; it is only not mended.

    Raises:
        CorruptError: the checkpoint does not give the row that the manifest promises.
    """
    geometry = manifest.geometry
    checkpoint: Checkpoint | None = None
    rows = []
    for record, number in bad:
        name = row_name(geometry, record, number)
        try:
            checkpoint = checkpoint or open_checkpoint(checkpoint_dir)
            row = make_row(checkpoint, geometry, record.kind, record.rank, number)
            right = row_digest(geometry.layout(record.kind), row) == record.rows[number]
        except (KeyError, PackError):
            right = False
        if not right:
            raise CorruptError(
                f"{directory / record.name}: {name} is damaged, and {checkpoint_dir} does not "
                "give it back: absent, another checkpoint, or damaged too",
                remedy="point --checkpoint to the one the pack was made from, or build it again",
            )
        try:
            _write_back(directory / record.name, row, number * record.stride_bytes)
        except OSError as error:
            logger.warning("%s cannot be mended (%s)", directory / record.name, error.strerror)
        on_row(name)
        rows.append(row)
    return rows


def _write_back(path: Path, row: Bytes, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        write_at(descriptor, row, offset)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _read_tensor(checkpoint: Checkpoint, shard: str, offset: int, size: int) -> Bytes:
    path = next(s.path for s in checkpoint.shards if s.name == shard)
    buffer = np.empty(size, np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return buffer[: read_at(descriptor, buffer, offset)]
    finally:
        os.close(descriptor)
