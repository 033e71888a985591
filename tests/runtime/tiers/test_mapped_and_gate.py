"""Mapped layers, the gate's arithmetic, and what a step's report says of requests."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsruntime.codec.layout import Correction
from dsruntime.pack.reader import Check, PackReader
from dsruntime.tiers.base import Bases
from dsruntime.tiers.base_settings import BaseSettings, parse_layers
from dsruntime.tiers.gate import Allowance, surety
from dsruntime.tiers.marking import MarksApproximate
from dsruntime.tiers.passes import Mode
from dsruntime.tiers.steps import StepReport
from dsruntime.tiers.verdict import Verdict, attach, is_decode, verdict_of
from tests.runtime.tiers.conftest import CANARY

NONE_STANDS = np.zeros(8, bool)
ROW_BYTES, ROW_SIZE = 57_344, 55_296
"""Of the canary: from row to row, and without the padding."""
MAPPED = BaseSettings(mapped_layers=frozenset({0, 2}))


@pytest.fixture
def pack(canary_packs: dict[Correction, Path], tmp_path: Path) -> Path:
    """A pack of the test's own, to damage."""
    return Path(shutil.copytree(canary_packs[Correction.NONE], tmp_path / "pack"))


@pytest.fixture
def mapped(pack: Path) -> Iterator[Bases]:
    reader = PackReader(pack)
    bases = Bases(reader, "w2-resident", MAPPED)
    yield bases
    bases.close()
    reader.close()


def test_a_mapped_row_is_the_packs_row(mapped: Bases, pack: Path) -> None:
    with PackReader(pack) as reader:
        for layer in (0, 2):
            base = mapped.layer(layer)
            ids = np.array([[1, 5], [-1, 7]])
            assert base.admit(ids, NONE_STANDS) is ids
            for expert in (1, 5, 7):
                want = reader.base(layer, expert)
                assert (base.row(expert)[: len(want)] == want).all()


def test_a_damaged_mapped_row_is_left_out_and_its_tokens_are_named(
    mapped: Bases, pack: Path
) -> None:
    base = mapped.layer(2)
    with (pack / "base.0of1.bin").open("r+b") as file:
        file.seek((2 * 8 + 5) * ROW_BYTES + 99)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    mapped.begin(Mode.STREAM)
    ids = np.array([[1, 5], [3, 4], [5, 0]])
    assert base.admit(ids, NONE_STANDS).tolist() == [[1, -1], [3, 4], [-1, 0]]
    assert mapped.current.wrong == {0, 2}
    (error,) = mapped.current.unreadable.values()
    assert "base of layers.2 expert 5" in str(error)


def test_a_damaged_mapped_row_is_made_again_from_the_checkpoint(pack: Path) -> None:
    path = pack / "base.0of1.bin"
    intact = path.read_bytes()
    path.write_bytes(bytes([intact[0] ^ 1]) + intact[1:])
    with PackReader(pack, checkpoint=CANARY) as reader:
        bases = Bases(reader, "w2-resident", MAPPED)
        base = bases.layer(0)
        base.admit(np.array([[0, 1]]), NONE_STANDS)
        assert not bases.current.wrong
        assert base.row(0)[:ROW_SIZE].tobytes() == intact[:ROW_SIZE]
        bases.close()
    assert path.read_bytes() == intact


def test_a_pack_truncated_under_a_mapping_is_an_error_and_not_a_dead_process(
    mapped: Bases, pack: Path
) -> None:
    base = mapped.layer(2)
    ids = np.array([[1, 5]])
    base.admit(ids, NONE_STANDS)
    os.truncate(pack / "base.0of1.bin", 10 * ROW_BYTES)
    mapped.begin(Mode.STREAM)
    assert base.admit(ids, NONE_STANDS).tolist() == [[-1, -1]]
    assert mapped.current.wrong == {0}
    assert "has been truncated" in str(mapped.current.unreadable[2 * 8 + 5])


def test_a_layer_that_is_not_there_is_named(pack: Path) -> None:
    with (
        PackReader(pack) as reader,
        pytest.raises(ValueError, match="mapped_layers: there is no layer 7; the pack has layers"),
    ):
        Bases(reader, "w2-resident", BaseSettings(mapped_layers=frozenset({1, 7})))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("0-2,5", {0, 1, 2, 5}), (" 7 ", {7}), ("", set()), (3, {3}), ("1,1-1", {1})],
)
def test_layers_are_written_as_numbers_and_ranges(text: str | int, layers: set[int]) -> None:
    assert parse_layers(text) == frozenset(layers)


@pytest.mark.parametrize("text", ["a", "2-", "3-1", "-1", "0..2", "1;2"])
def test_what_is_no_range_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layer or a range of layers"):
        parse_layers(text)


KILLED = """
import sys
from pathlib import Path
import numpy as np
from dsruntime.codec.layout import Correction
from dsruntime.pack.reader import Check, PackReader
from dsruntime.tiers.base import Bases
from dsruntime.tiers.base_settings import BaseSettings
from dsruntime.tiers.passes import Mode
import torch
from dsruntime.tiers.policy import Fixed, Move
from dsruntime.tiers.store import TierStore

reader = PackReader(Path(sys.argv[1]), check=Check.ALWAYS, checkpoint=Path(sys.argv[2]))
settings = BaseSettings(base_cache_gib=12 * 57344 / 2**30, arena_gib=6 * 57344 / 2**30)
bases = Bases(reader, "w2-cache", settings)
store = TierStore(reader, Fixed(), torch.float32, bases=bases)
store.allocate(32)
for key in range(32):
    store._begin(Move(key))
layers = [bases.layer(number) for number in range(4)]
everyone = np.arange(8).reshape(4, 2)
while True:
    bases.begin(Mode.STREAM)
    for layer in layers:
        layer.admit(everyone, np.zeros(8, bool))
        for expert in range(8):
            layer.row(expert)
"""


def test_an_engine_killed_while_it_fetches_promotes_and_repairs_leaves_a_pack_that_is_right(
    canary_packs: dict[Correction, Path], tmp_path: Path
) -> None:
    pack = Path(shutil.copytree(canary_packs[Correction.SPLIT], tmp_path / "pack"))
    path = pack / "base.0of1.bin"
    intact = path.read_bytes()
    damaged = bytearray(intact)
    for key in range(32):  # every row is to be made again and written back
        damaged[key * ROW_BYTES + key] ^= 0x10
    path.write_bytes(damaged)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(pack), str(CANARY)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "runtime")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for _ in range(5):
        assert "has been made again" in process.stderr.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with PackReader(pack, check=Check.ALWAYS, checkpoint=CANARY) as reader:
        for key in range(32):
            row = reader.base(*divmod(key, 8))
            assert row.tobytes() == intact[key * ROW_BYTES : key * ROW_BYTES + ROW_SIZE]
    assert path.read_bytes() == intact


@given(
    logits=st.lists(
        st.lists(st.floats(-20, 20, width=32), min_size=4, max_size=4), min_size=1, max_size=4
    )
)
def test_surety_is_that_of_the_least_sure_token(logits: list[list[float]]) -> None:
    rows = torch.tensor(logits, dtype=torch.float64).float()
    wide = rows.double()
    best = wide.softmax(dim=-1).amax(dim=-1).min().item()
    two = wide.sort(dim=-1, descending=True).values
    assert surety(rows, "max_prob") == pytest.approx(best, rel=1e-4)
    margin = (two[:, 0] - two[:, 1]).min().item()
    assert surety(rows, "margin") == pytest.approx(margin, abs=1e-4)


def test_no_token_is_as_sure_as_can_be() -> None:
    assert surety(torch.empty(0, 4), "max_prob") == math.inf


@given(percent=st.floats(0.1, 100), unsure=st.lists(st.booleans(), min_size=1, max_size=400))
def test_no_more_than_its_share_of_steps_is_redone(percent: float, unsure: list[bool]) -> None:
    allowance, redone = Allowance(percent), 0
    for step, asks in enumerate(unsure, 1):
        allowance = allowance.after_step()
        if asks and allowance.allows:
            allowance = allowance.after_redone()
            redone += 1
        assert redone <= step * percent / 100 + 1 + 1e-9
    if percent == 100:
        assert redone == sum(unsure)


def test_a_reports_tokens_are_told_by_request_and_padding_is_nobodys() -> None:
    report = StepReport(frozenset({0, 5, 9}), ((1, 2), (2, 1), (4, 3), (8, 1)), "row 3 is damaged")
    verdict = verdict_of(report, [("a", 1), ("b", 2), ("c", 3)])
    assert verdict == Verdict(frozenset({"a", "c"}), "row 3 is damaged", {"b": 3, "c": 3})


def test_a_verdict_goes_with_the_output_even_where_that_is_still_to_come() -> None:
    verdict = Verdict(frozenset({"a"}))
    plain, inner = SimpleNamespace(), SimpleNamespace()
    attach(plain, verdict)
    attach(SimpleNamespace(_model_runner_output=inner), verdict)
    assert plain.dsruntime_verdict == inner.dsruntime_verdict == verdict


@pytest.mark.parametrize(
    ("scheduled", "drafts", "decode"),
    [
        ({"a": 1, "b": 1}, {}, True),
        ({"a": 1, "b": 7}, {}, False),
        ({"a": 3, "b": 1}, {"a": [5, 6]}, True),
        ({"a": 3}, {"a": [5]}, False),
        ({}, {}, False),
    ],
)
def test_a_decode_step_has_one_token_a_request_and_its_drafts(
    scheduled: dict[str, int], drafts: dict[str, list[int]], decode: bool
) -> None:
    output = SimpleNamespace(num_scheduled_tokens=scheduled, scheduled_spec_decode_tokens=drafts)
    assert is_decode(output) is decode


def test_an_approximate_servers_responses_carry_a_header_and_nothing_else_changes() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"text"})

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(MarksApproximate(app)({"type": "http"}, lambda: None, send))  # type: ignore[arg-type,return-value]
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-dsruntime-replay", b"approximate")]
    assert sent[1] == {"type": "http.response.body", "body": b"text"}
