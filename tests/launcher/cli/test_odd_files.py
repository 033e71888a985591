"""Files that are no text, and numbers that are none: one line, exit code 2, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsctl.cli.app import build_app, run


@pytest.fixture
def binary(tmp_path: Path) -> str:
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xff\xfe" + os.urandom(100))
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "plot", "FILE", "-o", "DIR"],
        ["bench", "roofline", "FILE", "--plan", "FILE"],
        ["report", "DIR/out.html", "--bench", "FILE"],
        ["bench", "ab", "http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1", "--alpha", "nan"],
        ["bench", "ab", "http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1", "-o", "FILE/x.json"],
    ],
)
def test_it_is_bad_input(
    words: list[str], binary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    given = [word.replace("FILE", binary).replace("DIR", str(place)) for word in words]
    assert run(build_app(), given) == 2
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "what to do" in said
    assert not place.exists() or not list(place.iterdir())
