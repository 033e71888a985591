"""Saved images in memory, in the two forms that `docker save` has had."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class File:
    """One entry of a layer."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    type: bytes = tarfile.REGTYPE
    pax: dict[str, str] = field(default_factory=dict)


def tar(files: Iterable[File]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.mode, entry.type, entry.size = file.mode, file.type, len(file.content)
            entry.pax_headers = file.pax
            archive.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def legacy(*layers: list[File]) -> io.BytesIO:
    """A directory per layer, the last written first, as Docker sorted them by name."""
    names = [f"{len(layers) - n:02d}abc/layer.tar" for n in range(len(layers))]
    pairs = sorted(zip(names, layers, strict=True), key=lambda pair: pair[0])
    members = [File(name, tar(files)) for name, files in pairs]
    manifest = json.dumps([{"Config": "c.json", "Layers": names}]).encode()
    return io.BytesIO(tar([*members, File("c.json", b"{}"), File("manifest.json", manifest)]))


def oci(*layers: list[File]) -> io.BytesIO:
    """Blobs by digest, compressed, among blobs of JSON."""
    names = [f"blobs/sha256/{n:064d}" for n in range(len(layers))]
    members = [File(n, gzip.compress(tar(f))) for n, f in zip(names, layers, strict=True)]
    manifest = json.dumps([{"Config": "blobs/sha256/c", "Layers": names}]).encode()
    config = File("blobs/sha256/" + "c" * 64, b'{"architecture": "amd64"}')
    return io.BytesIO(tar([config, *members, File("manifest.json", manifest)]))
