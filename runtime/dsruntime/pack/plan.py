"""What a build will do, decided from headers alone: files, their sizes, and the jobs in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dsruntime import __version__
from dsruntime.codec import CODEC_ID
from dsruntime.codec.layout import Correction, ExpertShape, Matrix, RowLayout
from dsruntime.pack.checkpoint import Checkpoint, MatrixSource
from dsruntime.pack.digests import canonical, digest
from dsruntime.pack.errors import CheckpointError
from dsruntime.pack.shards import Tensor

FORMAT_VERSION: Literal[1] = 1
BUILDER = f"dsruntime {__version__}"

Kind = Literal["base", "correction"]


@dataclass(frozen=True)
class Geometry:
    """Layers (names, in row order), experts a layer, and one expert's whole shape."""

    layers: tuple[str, ...]
    experts: int
    hidden: int
    intermediate: int
    tensor_parallel: int
    correction: Correction

    @property
    def rows(self) -> int:
        return len(self.layers) * self.experts

    @cached_property
    def shape(self) -> ExpertShape:
        """One rank's share of an expert."""
        return ExpertShape(self.hidden, self.intermediate // self.tensor_parallel)

    def layout(self, kind: Kind) -> RowLayout:
        return self.shape.base if kind == "base" else self.shape.correction(self.correction)

    @cached_property
    def files(self) -> tuple[PackFile, ...]:
        """The data files, base and correction of every rank."""
        kinds: tuple[Kind, ...] = ("base", "correction")
        if self.correction is Correction.NONE:
            kinds = ("base",)
        ranks = range(self.tensor_parallel)
        return tuple(PackFile(kind, rank, self) for kind in kinds for rank in ranks)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class PackFile:
    """One data file: a row of `layout` for every (layer, expert), layers outermost."""

    kind: Kind
    rank: int
    geometry: Geometry

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.rank}of{self.geometry.tensor_parallel}.bin"

    @cached_property
    def layout(self) -> RowLayout:
        return self.geometry.layout(self.kind)

    @property
    def size_bytes(self) -> int:
        return self.geometry.rows * self.layout.stride_bytes


@dataclass(frozen=True)
class Job:
    """Read some tensors; where they are an expert matrix, also convert and write it.

    `row` is the (layer, expert) it belongs to; None for tensors that are only digested.
    """

    row: int | None
    matrix: Matrix | None
    source: MatrixSource | None
    tensors: tuple[Tensor, ...]

    @property
    def size_bytes(self) -> int:
        return sum(t.size_bytes for t in self.tensors)


@dataclass(frozen=True)
class BuildPlan:
    """The jobs in the order of the checkpoint's bytes, and the key that a resumed build must have.

    The key covers configuration, headers, geometry and codec but not the tensors' contents, which
    are only known when they have been read.
    """

    checkpoint: Checkpoint
    geometry: Geometry
    jobs: tuple[Job, ...]
    key: str

    @property
    def read_bytes(self) -> int:
        return sum(job.size_bytes for job in self.jobs)


def plan_build(
    checkpoint: Checkpoint, *, tensor_parallel: int, correction: Correction, draft: bool = False
) -> BuildPlan:
    """Decide everything about a build.

    Raises:
        CheckpointError: no experts, some missing, or shapes that cannot be packed or shared out.
    """
    experts = {k: v for k, v in checkpoint.experts.items() if draft or k[0].startswith("layers.")}
    geometry = _geometry(checkpoint, experts, tensor_parallel, correction)
    jobs: list[Job] = []
    used: set[str] = set()
    for row in range(geometry.rows):
        layer, expert = divmod(row, geometry.experts)
        for matrix in Matrix:
            source = experts[geometry.layers[layer], expert, matrix]
            jobs.append(Job(row, matrix, source, source.tensors))
            used.update(t.name for t in source.tensors)
    for shard in checkpoint.shards:
        jobs += [Job(None, None, None, (t,)) for t in shard.tensors if t.name not in used]
    jobs.sort(key=lambda job: (job.tensors[0].shard, job.tensors[0].offset))
    key = {
        "format": FORMAT_VERSION,
        "codec": CODEC_ID,
        "config": checkpoint.config,
        "shards": [[s.name, s.header_digest, s.size_bytes] for s in checkpoint.shards],
        "layers": geometry.layers,
        "tensor_parallel": tensor_parallel,
        "correction": correction,
    }
    return BuildPlan(checkpoint, geometry, tuple(jobs), digest(canonical(key)))


def _geometry(
    checkpoint: Checkpoint,
    experts: dict[tuple[str, int, Matrix], MatrixSource],
    tensor_parallel: int,
    correction: Correction,
) -> Geometry:
    if not experts:
        raise CheckpointError(
            f"{checkpoint.directory} has no routed experts "
            "(layers.N.ffn.experts.E.w1.weight and so on)",
            remedy="point --checkpoint to a DeepSeek-V4 checkpoint",
        )
    layers = sorted({key[0] for key in experts}, key=lambda name: (name[0], _number(name)))
    count = 1 + max(key[1] for key in experts)
    some = next(iter(experts.values()))
    k13 = {s.k for key, s in experts.items() if key[2] is not Matrix.W2}
    n13 = {s.n for key, s in experts.items() if key[2] is not Matrix.W2}
    if len(k13) != 1 or len(n13) != 1:
        raise _misfit(some, "experts have different shapes")
    hidden, intermediate = k13.pop(), n13.pop()
    wanted = {Matrix.W1: (intermediate, hidden), Matrix.W3: (intermediate, hidden)}
    wanted[Matrix.W2] = (hidden, intermediate)
    for layer in layers:
        for expert in range(count):
            for matrix, shape in wanted.items():
                source = experts.get((layer, expert, matrix))
                if source is None:
                    raise CheckpointError(
                        f"{checkpoint.directory}: {layer} expert {expert} has no {matrix}",
                        remedy="fetch the checkpoint again; it is incomplete",
                    )
                if (source.n, source.k) != shape:
                    raise _misfit(source, f"expected {shape[0]}x{shape[1]}")
    if hidden % 32 or intermediate % (32 * tensor_parallel):
        raise CheckpointError(
            f"hidden size {hidden} and intermediate size {intermediate} cannot be shared by "
            f"{tensor_parallel} ranks in blocks of 32",
            remedy="choose another --tp: 32 x tp must divide the intermediate size",
        )
    return Geometry(tuple(layers), count, hidden, intermediate, tensor_parallel, correction)


def _number(layer: str) -> int:
    return int(layer.rsplit(".", 1)[1])


def _misfit(source: MatrixSource, why: str) -> CheckpointError:
    return CheckpointError(
        f"{source.weight.shard}: {source.weight.name} is {source.n}x{source.k}: {why}",
        remedy="this checkpoint's experts cannot be packed",
    )
