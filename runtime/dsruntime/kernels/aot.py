"""What Triton makes of the kernels for a card that is not here: registers, memory, spills, code.

The compiler and the assembler come in Triton's wheel; no driver is needed. Compiled are the
launches of `moe`, with the tiles and the facts about alignment that the launcher would find.

    python -m dsruntime.kernels.aot      # as JSON; `report` makes the tables of docs/kernels.md
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.kernels.launch import DECODE, FEW_PAIRS, PREFILL, Planes, Tile

SM120 = 120
SHARED_LIMIT_BYTES = 99 * 1024
"""Shared memory of one program on compute capability 12.x (CUDA C++ Programming Guide, table
"Technical Specifications per Compute Capability")."""

SHAPES = {1: ExpertShape(4096, 2048), 2: ExpertShape(4096, 1024)}
"""DeepSeek-V4-Flash's experts on each rank, by the number of tensor-parallel ranks."""

_POINTERS = {
    "x": "*bf16", "hidden": "*bf16", "out": "*bf16", "partial": "*fp32", "weights": "*fp32",
    "ids": "*i32", "experts": "*i32", "members": "*i32", "base_rows": "*i32", "slots": "*i32",
    "base": "*u8", "uses": "*i32", "pool": "*i64", "limit": "fp32",
}  # fmt: skip
_UNALIGNED = ("topk", "PAIRS", "limit")
_FLUSHING = re.compile(r"\b(?:mul|fma)\.(?:rn\.)?ftz\b")
_OPERATION = re.compile(r"\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)")


@dataclass(frozen=True)
class Build:
    """One binary to be made: a kernel, its constants, its warps and stages."""

    kernel: str
    tile: str
    coding: str
    constants: tuple[tuple[str, object], ...]
    warps: int
    stages: int


@dataclass(frozen=True)
class Loop:
    """The inner loop of one tier: thread instructions for each weight, and its widest copy."""

    instructions_per_weight: float
    copy_bytes: int


@dataclass(frozen=True)
class Built:
    """What came out.

    Attributes:
        spill_bytes: stack of a thread plus what the assembler counts as local memory.
        base, corrected: the two loops of a product; None for kernels without one.
        flushing: multiplications that take subnormals for zero. Expansion makes e2m1's halves out
            of subnormals, so there must be none.
    """

    kernel: str
    tile: str
    coding: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    base: Loop | None = None
    corrected: Loop | None = None
    flushing: int = field(default=0, kw_only=True)


def builds() -> tuple[Build, ...]:
    """All binaries that serving can need: shapes are runtime arguments, so both ranks' are here."""
    found = []
    for name, tile in (("decode", DECODE), ("prefill", PREFILL)):
        for coding in (Correction.SPLIT, Correction.PLAIN):
            for kernel in ("gate_up", "down"):
                found.append(_product(kernel, name, tile, coding))
    combine = (("TOPK", 6), ("BN", 512), ("DOT", "bfloat16"))
    group = (("BP", FEW_PAIRS), ("BT", DECODE.tokens))
    return (
        *found,
        Build("combine", "any", "any", combine, 4, 3),
        Build("group", "decode", "any", group, 4, 3),
    )


def bits_per_weight(shape: ExpertShape, coding: Correction | None) -> float:
    """Bits read from the planes for one weight: base and scales; with a coding, corrected."""
    planes = Planes(shape, coding or Correction.SPLIT)
    weights = 3 * shape.hidden * shape.intermediate
    scales = sum(p.size_bytes for p in planes.base.planes if p.name.startswith("scales"))
    read = planes.base.size_bytes
    if coding is Correction.SPLIT:
        read += planes.slot.size_bytes
    elif coding is Correction.PLAIN:
        read = scales + planes.slot.size_bytes
    return 8 * read / weights


def build(wanted: Build) -> Built:
    """Compile one kernel for sm_120 and read the binary."""
    import triton
    from triton.backends.compiler import GPUTarget

    compiled = triton.compile(
        _source(wanted),
        target=GPUTarget("cuda", SM120, 32),
        options={"num_warps": wanted.warps, "num_stages": wanted.stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("nvdisasm", "-c", file.name)
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    loops = _loops(code, dict(wanted.constants), wanted.warps)
    loops.sort(key=lambda loop: loop.instructions_per_weight)  # the base is the shorter
    return Built(
        wanted.kernel, wanted.tile, wanted.coding, numbers["REG"], compiled.metadata.shared,
        numbers["STACK"] + numbers["LOCAL"], *loops,
        flushing=len(_FLUSHING.findall(compiled.asm["ptx"])),
    )  # fmt: skip


def build_all(processes: int = 2) -> list[Built]:
    """`build` of all `builds`, side by side."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(build, builds()))


def compiler_version() -> str:
    """Which Triton made the table: register counts differ from one to the next."""
    from importlib.metadata import version

    return version("triton")


def _product(kernel: str, name: str, tile: Tile, coding: Correction) -> Build:
    constants = (
        ("SPLIT", coding is Correction.SPLIT), ("BM", tile.rows), ("BT", tile.tokens),
        ("BK", tile.words), ("DOT", "bfloat16"),
    )  # fmt: skip
    return Build(kernel, name, str(coding), constants, tile.warps, tile.stages)


def _source(wanted: Build) -> Any:
    import triton.language as tl
    from triton.compiler import ASTSource

    from dsruntime.kernels import grouped

    function = getattr(grouped, f"{wanted.kernel}_kernel")
    constants = {k: getattr(tl, str(v)) if k == "DOT" else v for k, v in wanted.constants}
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for number, name in enumerate(function.arg_names):
        signature[name] = "constexpr" if name in constants else _POINTERS.get(name, "i32")
        if name not in constants and name not in _UNALIGNED:
            attributes[(number,)] = [["tt.divisibility", 16]]
    if wanted.kernel == "down":
        signature["out"] = "*fp32"
    return ASTSource(function, signature, constexprs=constants, attrs=attributes)


def _tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _loops(code: str, constants: dict[str, object], warps: int) -> list[Loop]:
    """The loops that hold matrix products, from a disassembly."""
    lines = code.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := re.match(r"(\.L_x_\w+):", line))}
    found = []
    for number, line in enumerate(lines):
        target = re.search(r"BRA\S* .*`\((\.L_x_\w+)\)", line)
        if target is None or labels.get(target[1], number) >= number:
            continue
        body = lines[labels[target[1]] : number + 1]
        operations = [m[1] for each in body if (m := _OPERATION.search(each))]
        if not any(operation.startswith("HMMA") for operation in operations):
            continue
        weights = 16 * int(str(constants["BM"])) * int(str(constants["BK"]))
        copies = [o.split(".") for o in operations if o.startswith("LDGSTS")]
        widest = max((int(c[-1]) // 8 if c[-1].isdigit() else 4 for c in copies), default=0)
        found.append(Loop(round(32 * warps * len(operations) / weights, 2), widest))
    return found


def from_json(text: str) -> list[Built]:
    """What `main` printed."""

    def loop(found: dict[str, Any] | None) -> Loop | None:
        return None if found is None else Loop(**found)

    return [
        Built(**each | {"base": loop(each["base"]), "corrected": loop(each["corrected"])})
        for each in json.loads(text)
    ]


def main() -> None:
    """Print what was built, as JSON."""
    print(json.dumps([asdict(each) for each in build_all()]))


if __name__ == "__main__":
    main()
