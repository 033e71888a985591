"""`dsctl up` shows the key it has made: once, in text, even where the start came to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.cli.output import Format
from dsctl.cli.up import _new_key_shown
from dsctl.errors import EngineError
from dsctl.keys import KeyFile
from dsctl.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))


def start(paths: Paths, format_: Format, *, fails: bool = False) -> str:
    with _new_key_shown(paths, format_):
        key, _ = KeyFile(paths.api_keys).ensure()
        if fails:
            raise EngineError("it died")
    return key.secret


def test_a_new_key_is_shown_once(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    secret = start(paths, Format.TEXT)
    assert capsys.readouterr().err.count(secret) == 1
    start(paths, Format.TEXT)
    assert secret not in capsys.readouterr().err


def test_a_start_that_fails_shows_it_too(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineError):
        start(paths, Format.TEXT, fails=True)
    key = KeyFile(paths.api_keys).first()
    assert key is not None
    assert key.secret in capsys.readouterr().err


def test_json_never_has_it(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    secret = start(paths, Format.JSON)
    said = capsys.readouterr()
    assert secret not in said.out + said.err


def test_a_start_without_containers_shows_nothing(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    with _new_key_shown(paths, Format.TEXT):
        pass
    assert capsys.readouterr().err == ""
