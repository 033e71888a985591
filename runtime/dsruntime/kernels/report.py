"""The tables of docs/kernels.md, and putting them there.

python -m dsruntime.kernels.report docs/kernels.md      # compile everything, write the tables
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dsruntime.codec.layout import Correction
from dsruntime.kernels.aot import (
    SHAPES,
    Built,
    Loop,
    bits_per_weight,
    build_all,
    compiler_version,
)

_SOURCES = ("expand.py", "grouped.py", "launch.py")
_TIERS: dict[str, Correction | None] = {
    "2 bits": None,
    "corrected, split": Correction.SPLIT,
    "corrected, plain": Correction.PLAIN,
}


def compiled_table(built: Sequence[Built], version: str) -> str:
    """One line a binary."""
    lines = [
        f"Triton {version}, sm_120, of sources `{sources()}`:",
        "",
        "| kernel | tile | coding | registers | shared | spilled | instructions a weight: 2 bits "
        "| corrected | copies |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in built:
        copies = f"{each.base.copy_bytes} B" if each.base else "–"
        lines.append(
            f"| {each.kernel} | {each.tile} | {each.coding} | {each.registers} "
            f"| {each.shared_bytes / 1024:.1f} KiB | {each.spill_bytes} B | {_cost(each.base)} "
            f"| {_cost(each.corrected)} | {copies} |"
        )
    return "\n".join(lines)


def read_table() -> str:
    """Bytes that the planes give for one weight, by ranks and tier; from the layout."""
    lines = [
        "| read for one weight | " + " | ".join(f"TP {ranks}" for ranks in SHAPES) + " |",
        "| --- |" + " --- |" * len(SHAPES),
    ]
    for name, coding in _TIERS.items():
        bits = [bits_per_weight(shape, coding) for shape in SHAPES.values()]
        cells = " | ".join(f"{each / 8:.4f} B ({each:.2f} bits)" for each in bits)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def sources() -> str:
    """Names the kernels' source text: a table of another text is stale."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]


def markers(name: str) -> tuple[str, str]:
    """The lines around a generated part of the page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def part(text: str, name: str) -> str:
    """A generated part of a page.

    Raises:
        ValueError: the page has no such markers.
    """
    begin, end = markers(name)
    return text[text.index(begin) + len(begin) : text.index(end)].strip()


def with_part(text: str, name: str, new: str) -> str:
    """The page with another text between the markers."""
    begin, end = markers(name)
    return f"{text[: text.index(begin)]}{begin}\n{new}\n{text[text.index(end) :]}"


def _cost(loop: Loop | None) -> str:
    return f"{loop.instructions_per_weight:.2f}" if loop else "–"


def main(path: str) -> None:
    """Write the tables into a page that has their markers."""
    page, version = Path(path), compiler_version()
    text = with_part(page.read_text(), "bytes", read_table())
    page.write_text(with_part(text, f"Triton {version}", compiled_table(build_all(), version)))


if __name__ == "__main__":
    main(sys.argv[1])
