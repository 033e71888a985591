"""The build context as a tar: the same inputs give the same bytes, and nothing else goes in."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dsctl.image.names import inside
from dsctl.image.recipe import BUILD_ONLY, Recipe
from dsctl.image.sbom import SOURCE_DATE_EPOCH, sbom
from dsctl.paths import shipped

_SBOM = "files/usr/share/dsctl/sbom.cdx.json"


@dataclass(frozen=True)
class Member:
    """One file of the context: its bytes, or the file on disk that has them."""

    name: str
    content: bytes | Path


def members(made: Recipe, wheels: list[Path], wheelhouse: Path) -> list[Member]:
    """All files of the context, by name: one directory for each step of the Dockerfile, with what
    that step is made of and nothing else."""
    found = [Member("Dockerfile", shipped("Dockerfile")), *_system(made, wheelhouse)]
    if made.engine is not None:
        found += [*_packages(made, wheels), *_runtime(made, wheels)]
    return sorted(found, key=lambda member: member.name)


def _system(made: Recipe, wheelhouse: Path) -> Iterator[Member]:
    for name in ("unpack.sh", "assemble.py"):
        yield Member(f"system/{name}", inside() / name)
    for deb in made.debs.packages:
        yield Member(f"system/debs/{deb.file_name}", wheelhouse / "debs" / deb.file_name)
    for name, debs in (("build", made.debs.packages), ("image", made.debs.image)):
        listed = "".join(f"{deb.file_name}\n" for deb in debs)
        yield Member(f"system/debs/{name}.list", listed.encode())
    if made.engine is None:
        yield from _tree("system/files/etc/gateway", shipped("hardening", "gateway"))
        yield Member(f"system/{_SBOM}", sbom(made).encode())


def _packages(made: Recipe, wheels: list[Path]) -> Iterator[Member]:
    yield Member("packages/assemble.py", inside() / "assemble.py")
    yield Member("packages/requirements.txt", made.requirements().encode())
    for wheel in wheels:
        if _distribution(wheel) not in BUILD_ONLY:
            yield Member(f"packages/wheels/{wheel.name}", wheel)
    for name, text in made.site_files().items():
        yield Member(f"packages/site/{name}", text.encode())


def _runtime(made: Recipe, wheels: list[Path]) -> Iterator[Member]:
    yield Member("runtime/assemble.py", inside() / "assemble.py")
    for wheel in wheels:
        if _distribution(wheel) in ("pip", *BUILD_ONLY):
            yield Member(f"runtime/wheels/{wheel.name}", wheel)
    yield from _tree("runtime/source", shipped("runtime"))
    yield Member("runtime/files/usr/lib/dsctl/serve.py", inside() / "serve.py")
    yield Member(f"runtime/{_SBOM}", sbom(made).encode())


def write_context(found: list[Member], out: IO[bytes]) -> None:
    """The tar of these files: one owner, one time, two modes, in order of name."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for member in found:
            with _opened(member.content) as (file, size):
                entry = tarfile.TarInfo(member.name)
                entry.size, entry.mtime, entry.mode = size, SOURCE_DATE_EPOCH, 0o644
                tar.addfile(entry, file)


def _distribution(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-").lower()


def _tree(prefix: str, root: Path) -> Iterator[Member]:
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield Member(f"{prefix}/{path.relative_to(root)}", path)


@contextmanager
def _opened(content: bytes | Path) -> Iterator[tuple[IO[bytes], int]]:
    """A file with its size, from disk or from memory."""
    if isinstance(content, bytes):
        yield io.BytesIO(content), len(content)
    else:
        with content.open("rb") as file:
            yield file, content.stat().st_size
