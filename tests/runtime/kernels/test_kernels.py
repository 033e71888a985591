"""What of the kernels can be proved without a card."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from dsruntime.codec.layout import Correction, ExpertShape
from dsruntime.kernels import aot, report
from dsruntime.kernels.launch import FEW_PAIRS, Planes, ShapeError, most_blocks
from dsruntime.kernels.moe import group_by_sort, reorder
from tests.runtime.kernels.interpreted_moe import blocks, expected_blocks

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


class Child:
    """A Python process, started now and waited for when its result is wanted."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def output(self) -> str:
        """What it printed; it must have ended well."""
        out, err = self._process.communicate(timeout=1800)
        assert self._process.returncode == 0, out[-6000:] + err[-3000:]
        return out

    def stop(self) -> None:
        """End it if nobody waited."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Child]]:
    """Interpreter and compiler, each in a process of its own, side by side.

    Triton decides at its import whether it interprets, so neither can be this process.
    """
    cache = str(tmp_path_factory.mktemp("triton"))
    started = {
        "interpreted": Child(
            "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "interpreted_moe.py", "interpreted_tiers.py",
            cwd=HERE, TRITON_INTERPRET="1",
        ),
        "compiled": Child(
            "-m", "dsruntime.kernels.aot", cwd=ROOT, TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache
        ),
    }  # fmt: skip
    yield started
    for child in started.values():
        child.stop()


def test_in_tritons_interpreter_they_are_the_routed_sum(children: dict[str, Child]) -> None:
    assert "[100%]" in children["interpreted"].output()


def test_compiled_for_sm120_none_spills_and_the_page_says_what_the_compiler_made(
    children: dict[str, Child],
) -> None:
    made = aot.from_json(children["compiled"].output())
    assert len(made) == len(aot.builds())
    for each in made:
        assert each.spill_bytes == 0, each
        assert each.flushing == 0, each
        assert each.shared_bytes <= aot.SHARED_LIMIT_BYTES, each
        for loop in (each.base, each.corrected):
            assert (loop is not None) == (each.kernel in ("gate_up", "down")), each
            assert loop is None or loop.copy_bytes == 16, each
    version = aot.compiler_version()
    page = (ROOT / "docs" / "kernels.md").read_text()
    anew = "`python -m dsruntime.kernels.report docs/kernels.md` writes it anew"
    assert report.part(page, f"Triton {version}") == report.compiled_table(made, version), anew
    assert report.part(page, "bytes") == report.read_table(), anew


def test_every_table_on_the_page_is_of_these_sources() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text()
    assert set(re.findall(r"of sources `(\w+)`", page)) == {report.sources()}


@given(
    st.lists(st.integers(-1, 11), min_size=1, max_size=120),
    st.sampled_from([1, 8, 32]),
    st.sets(st.integers(0, 11), max_size=4),
)
@settings(deadline=None, max_examples=60)
def test_every_pair_whose_expert_is_there_is_in_one_block_of_that_expert(
    chosen: list[int], size: int, absent: set[int]
) -> None:
    ids = torch.tensor(chosen, dtype=torch.int32)
    rows = torch.tensor([-1 if e in absent else e for e in range(12)], dtype=torch.int32)
    count = (len(chosen) + min(len(chosen), 12) * (size - 1)) // size
    experts = torch.full((count,), 99, dtype=torch.int32)
    members = torch.full((count * size + 1,), 99, dtype=torch.int32)
    group_by_sort(ids, rows, size, experts, members)
    assert blocks(experts, members, size) == expected_blocks(ids, rows, size)


def test_no_shape_depends_on_the_routing() -> None:
    with FakeTensorMode():  # raises where a value would have to be looked at
        ids = torch.empty(600, dtype=torch.int32)
        rows = torch.empty(12, dtype=torch.int32)
        count = most_blocks(600, 12, 32)
        experts = torch.empty(count, dtype=torch.int32)
        group_by_sort(ids, rows, 32, experts, torch.empty(count * 32 + 1, dtype=torch.int32))
        reorder(torch.empty(3, 256), torch.empty(3, 256))


def test_activations_are_put_into_the_order_of_the_words() -> None:
    x = torch.arange(2 * 300).reshape(2, 300)[:, :256]  # rows need not follow each other
    out = torch.empty(2, 256, dtype=x.dtype)
    reorder(x, out)
    ordered = out.view(2, 4, 16, 4)
    for group, word, j in ((0, 0, 0), (3, 15, 3), (1, 7, 2)):
        assert ordered[1, group, word, j] == x[1, 16 * word + 4 * group + j]


@pytest.mark.parametrize("pairs", [1, FEW_PAIRS, FEW_PAIRS + 1, 6144])
def test_the_worst_routing_has_a_block_for_every_pair(pairs: int) -> None:
    experts, size = 256, 8 if pairs <= FEW_PAIRS else 32
    spread = min(pairs, experts)  # as many ragged blocks as there can be
    counts = [1] * (spread - 1) + [pairs - spread + 1]
    assert sum(-(-count // size) for count in counts) <= most_blocks(pairs, experts, size)


def test_experts_that_no_tile_fits_are_refused_with_what_to_do() -> None:
    with pytest.raises(ShapeError, match="fewer tensor-parallel ranks"):
        Planes(ExpertShape(4096, 128), Correction.SPLIT)


def test_importing_the_package_imports_neither_torch_nor_triton() -> None:
    program = (
        "import sys, dsruntime.kernels, dsruntime.kernels.launch\n"
        "assert not {'torch', 'triton', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=ROOT / "runtime")
