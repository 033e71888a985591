"""Heat survives a restart, and a file that is damaged costs a warm start and no more."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsruntime.tiers.heat import HeatFile, HeatKeeper, heat_path

LAYERS = ("layers.0", "layers.1", "mtp.0")


def heat_file(directory: Path, *, model: str = "abc", experts: int = 2) -> HeatFile:
    return HeatFile(heat_path(directory, model), model, LAYERS, experts)


@given(heat=st.lists(st.floats(0, 1e12), min_size=6, max_size=6).map(np.array))
def test_what_is_written_is_read_to_four_digits(
    tmp_path_factory: pytest.TempPathFactory, heat: np.ndarray
) -> None:
    file = heat_file(tmp_path_factory.getbasetemp() / "heat")
    file.write(heat)
    np.testing.assert_allclose(file.read(), heat, rtol=1e-4)


def test_a_first_start_is_cold_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert heat_file(tmp_path / "nowhere").read() is None
    assert not caplog.text


def test_a_layer_that_was_not_there_is_cold(tmp_path: Path) -> None:
    file = HeatFile(heat_path(tmp_path, "abc"), "abc", LAYERS[:2], 2)
    file.write(np.arange(4.0))
    assert heat_file(tmp_path).read().tolist() == [0, 1, 2, 3, 0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "is damaged: the file"),
        (lambda text: text.replace("1.0", "-1.0"), "is damaged: layers.layers.0.1"),
        (lambda text: text.replace("1.0", "NaN"), "is damaged"),
        (lambda text: text.replace('"abc"', '"abd"'), "is of another model"),
        (lambda text: text.replace("[0.0,", "["), "is not for 2 experts a layer"),
        (lambda text: json.dumps(json.loads(text) | {"version": 2}), "is damaged: version"),
        (lambda text: "", "is damaged"),
    ],
)
def test_a_useless_file_is_ignored_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, says: str
) -> None:
    file = heat_file(tmp_path)
    file.write(np.arange(6.0))
    file.path.write_text(damage(file.path.read_text()))
    with caplog.at_level(logging.WARNING, "dsruntime.tiers"):
        assert file.read() is None
    (line,) = caplog.messages
    assert says in line
    assert str(file.path) in line
    assert line.endswith("the pool starts cold")


def test_a_directory_that_cannot_be_written_is_told_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    file = heat_file(tmp_path / "taken" / "below")
    with caplog.at_level(logging.WARNING, "dsruntime.tiers"):
        file.write(np.ones(6))
    assert "heat is not kept" in caplog.text


def test_it_is_written_when_it_is_time_and_at_the_end(tmp_path: Path) -> None:
    time = [0.0]
    file = heat_file(tmp_path)
    keeper = HeatKeeper(file, 10, lambda: time[0])
    keeper.after_step(lambda: np.ones(6))
    assert file.read() is None, "written before its time"
    time[0] = 10
    keeper.after_step(lambda: np.full(6, 2.0))
    keeper.after_step(lambda: np.full(6, 3.0))
    assert keeper._writing is not None
    keeper._writing.result(30)
    assert file.read().tolist() == [2] * 6  # type: ignore[union-attr]
    keeper.close(np.full(6, 4.0))
    assert file.read().tolist() == [4] * 6  # type: ignore[union-attr]


def test_an_end_before_the_first_use_keeps_what_was_known(tmp_path: Path) -> None:
    file = heat_file(tmp_path)
    file.write(np.ones(6))
    HeatKeeper(file, 10).close(np.zeros(6))
    assert file.read().tolist() == [1] * 6  # type: ignore[union-attr]
