"""From a matrix's tensors to the bytes of its segments. Pure: bytes in, bytes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsruntime.codec import fp4, sources
from dsruntime.codec.layout import Correction, Matrix
from dsruntime.pack.checkpoint import MatrixSource, SourceFormat
from dsruntime.pack.errors import CheckpointError
from dsruntime.pack.plan import Geometry, Kind

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Piece:
    """A segment's bytes and where they go: file (kind, rank) and segment number in its layout."""

    kind: Kind
    rank: int
    segment: int
    data: Bytes


def to_fp4(source: MatrixSource, buffers: list[Bytes]) -> sources.Fp4Matrix:
    """The matrix as FP4 codes [N, K/2] and scales [N, K/32].

    Args:
        source: what the buffers are.
        buffers: the raw bytes of `source.tensors`, in that order.

    Raises:
        CheckpointError: NaN scales or values that are not finite; names the tensor.
    """
    n, k = source.n, source.k
    if source.format is SourceFormat.FP4:
        scales = buffers[1].reshape(n, k // fp4.BLOCK)
        bad = sources.nan_scales(scales)
        if bad:
            raise _poisoned(source, f"{bad} blocks of 32 have the NaN scale (255)")
        return sources.Fp4Matrix(buffers[0].reshape(n, k // 2), scales)
    try:
        return sources.to_fp4(_rows(source, buffers), n, k)
    except sources.NotFiniteError as error:
        raise _poisoned(source, str(error)) from None


def pieces(matrix: Matrix, fp4_matrix: sources.Fp4Matrix, geometry: Geometry) -> tuple[Piece, ...]:
    """Every segment that comes from this matrix, for all ranks, in a fixed order."""
    codes, scales = fp4_matrix.codes, fp4_matrix.scales
    planes: list[tuple[Kind, str, Bytes]] = [
        ("base", "codes", fp4.encode_base(codes)),
        ("base", "scales", scales),
    ]
    if geometry.correction is Correction.PLAIN:
        planes.append(("correction", "fp4", codes))
    elif geometry.correction is Correction.SPLIT:
        low, high = fp4.encode_split(codes)
        planes += [("correction", "low", low), ("correction", "high", high)]
    found = []
    for kind, name, plane in planes:
        number = segment_number(geometry, kind, matrix, name)
        for rank in range(geometry.tensor_parallel):
            share = rank_share(plane, matrix, rank, geometry.tensor_parallel)
            found.append(Piece(kind, rank, number, share))
    return tuple(found)


def segment_number(geometry: Geometry, kind: Kind, matrix: Matrix, name: str) -> int:
    """Which segment of the layout `kind` holds the plane `name` of `matrix`."""
    for number, segment in enumerate(geometry.layout(kind).segments):
        if segment.matrix is matrix and segment.kind == name:
            return number
    raise KeyError((kind, matrix, name))


def rank_share(plane: Bytes, matrix: Matrix, rank: int, ranks: int) -> Bytes:
    """One rank's part of a plane: rows of w1 and w3, columns of w2; contiguous."""
    if matrix is Matrix.W2:
        width = plane.shape[1] // ranks
        return np.ascontiguousarray(plane[:, rank * width : (rank + 1) * width])
    height = plane.shape[0] // ranks
    return np.ascontiguousarray(plane[rank * height : (rank + 1) * height])


def _rows(source: MatrixSource, buffers: list[Bytes]) -> sources.RowReader:
    n, k = source.n, source.k
    if source.format is SourceFormat.BF16:
        return sources.bf16_rows(buffers[0].view(np.uint16).reshape(n, k))
    if source.format is SourceFormat.FP8:
        assert source.scale is not None
        scale: npt.NDArray[np.generic] = buffers[1]
        if source.scale.dtype == "F32":
            scale = buffers[1].view(np.float32)
        shaped: npt.NDArray[np.generic] = scale.reshape(source.scale.shape)
        return sources.fp8_rows(buffers[0].reshape(n, k), shaped)
    scale2 = float(buffers[2].view(np.float32)[0])
    return sources.nvfp4_rows(buffers[0].reshape(n, k // 2), buffers[1].reshape(n, k // 16), scale2)


def _poisoned(source: MatrixSource, why: str) -> CheckpointError:
    return CheckpointError(
        f"{source.weight.shard}: {source.weight.name}: {why}",
        remedy="the shard is damaged: compare its checksum with the publisher's and fetch it again",
    )
