"""The sidecar `pack.json`: written last, it alone makes a directory a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dsruntime.codec import CODEC_ID
from dsruntime.codec.layout import Correction
from dsruntime.pack.digests import canonical, digest
from dsruntime.pack.errors import CorruptError, StaleError, UnusableError
from dsruntime.pack.files import write_atomically
from dsruntime.pack.plan import FORMAT_VERSION, Geometry, Kind

NAME = "pack.json"
_BUILD_AGAIN = "build it again with `dsctl pack build`"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardRecord(_Value):
    """A shard of the checkpoint: digest of its content, and how it looked when it was read."""

    name: str
    size_bytes: int
    digest: str
    seen: str


class Source(_Value):
    """What the pack was made from."""

    identity: str
    formats: dict[str, int]
    shards: tuple[ShardRecord, ...]


class Model(_Value):
    """Geometry of the whole model; `layers` in row order."""

    layers: tuple[str, ...]
    experts: int
    hidden: int
    intermediate: int


class FileRecord(_Value):
    """A data file; `rows` has the digest of each row in row order."""

    name: str
    kind: Kind
    rank: int
    slot_bytes: int
    stride_bytes: int
    size_bytes: int
    rows: tuple[str, ...]


class Manifest(_Value):
    """Everything the sidecar says. `digest` covers all other fields."""

    format_version: Literal[1] = FORMAT_VERSION
    codec: str
    built_by: str
    built_at: str
    plan: str
    model: Model
    tensor_parallel: int
    correction: Correction
    source: Source
    files: tuple[FileRecord, ...]
    digest: str = ""

    @property
    def geometry(self) -> Geometry:
        """As the planner sees it."""
        m = self.model
        return Geometry(
            m.layers, m.experts, m.hidden, m.intermediate, self.tensor_parallel, self.correction
        )

    def file(self, kind: Kind, rank: int) -> FileRecord:
        """The record of one data file.

        Raises:
            StaleError: this pack has none for that rank, or was built without correction.
        """
        for record in self.files:
            if record.kind == kind and record.rank == rank:
                return record
        if rank >= self.tensor_parallel:
            raise StaleError(
                f"the pack is for {self.tensor_parallel} ranks; rank {rank} asked for its {kind}",
                remedy="build one with `dsctl pack build --tp N` for as many ranks as the engine",
            )
        raise StaleError(
            f"the pack has no {kind} file",
            remedy="build one with `dsctl pack build --correction split` (or plain)",
        )

    def sealed(self) -> Manifest:
        """With its own digest filled in."""
        return self.model_copy(update={"digest": self._own_digest()})

    def _own_digest(self) -> str:
        return digest(canonical(self.model_dump(mode="json", exclude={"digest"})))

    def is_intact(self) -> bool:
        """Whether the digest fits the rest."""
        return self.digest == self._own_digest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the sidecar, whole or not at all."""
    write_atomically(directory / NAME, manifest.sealed().model_dump_json(indent=1) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """Read and check the sidecar and the sizes of the files it names.

    Raises:
        UnusableError: there is no pack.
        StaleError: made by another version or codec.
        CorruptError: damaged sidecar, or a file absent or of the wrong size; names it.
    """
    path = directory / NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UnusableError(
            f"{path} cannot be read: {error.strerror}",
            remedy="name a directory that `dsctl pack build` printed (it holds pack.json)",
        ) from None
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CorruptError(f"{path}: {where}: {first['msg']}", remedy=_BUILD_AGAIN) from None
    if not manifest.is_intact():
        raise CorruptError(f"{path} does not have the digest it states", remedy=_BUILD_AGAIN)
    if manifest.codec != CODEC_ID:
        raise StaleError(
            f"{path}: codec {manifest.codec}, this runtime reads {CODEC_ID}", remedy=_BUILD_AGAIN
        )
    for record in manifest.files:
        file = directory / record.name
        size = file.stat().st_size if file.exists() else None
        if size != record.size_bytes:
            found = "is missing" if size is None else f"has {size} bytes"
            raise CorruptError(f"{file} {found}, expected {record.size_bytes}", remedy=_BUILD_AGAIN)
    return manifest
