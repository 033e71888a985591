"""What the pack program says reaches the user: progress, report, error with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsctl.background import Background
from dsctl.engine.pack import run_pack
from dsctl.errors import ConfigError, DsctlError, NotGoodError
from dsctl.progress import Progress

PROGRESS = (
    '{"progress": {"what": "packing experts", "done": 5, "total": 10, "unit": "bytes", '
    '"rate_per_s": 2.5, "left_s": 2.0}}'
)
ERROR = '{"error": {"kind": "no-space", "message": "no room for the pack", "remedy": "free some"}}'


def program(tmp_path: Path, *, out: str = "", err: str = "", code: int = 0) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(
        f"import sys\nprint({out!r})\nprint({err!r}, file=sys.stderr)\nsys.exit({code})\n"
    )
    return [sys.executable, str(script)]


def quiet(tmp_path: Path) -> Background:
    return Background(tmp_path / "background")


def test_progress_and_report_are_passed_on(tmp_path: Path) -> None:
    said: list[Progress] = []
    argv = program(tmp_path, out='{"pack": "/packs/a"}', err=PROGRESS)
    report = run_pack(argv, "", [], said.append, quiet(tmp_path))
    assert report.good
    assert report.body == {"pack": "/packs/a"}
    assert said == [Progress("packing experts", 5, 10, "bytes", 2.5, 2.0)]


def test_a_pack_that_is_not_good_still_has_its_report(tmp_path: Path) -> None:
    report = run_pack(
        program(tmp_path, out='{"bad": ["x"]}', code=1), "", [], lambda _: None, quiet(tmp_path)
    )
    assert not report.good
    assert report.body["bad"] == ["x"]


@pytest.mark.parametrize(("code", "kind"), [(1, NotGoodError), (2, ConfigError)])
def test_an_error_keeps_its_words_its_remedy_and_its_exit_code(
    tmp_path: Path, code: int, kind: type[DsctlError]
) -> None:
    with pytest.raises(kind, match="no room for the pack") as caught:
        run_pack(program(tmp_path, err=ERROR, code=code), "", [], lambda _: None, quiet(tmp_path))
    assert caught.value.remedy == "free some"
    assert caught.value.exit_code == code


def test_a_program_that_breaks_is_told_by_its_last_line(tmp_path: Path) -> None:
    argv = program(tmp_path, err="ImportError: no module named blake3", code=1)
    with pytest.raises(DsctlError, match="no module named blake3"):
        run_pack(argv, "", [], lambda _: None, quiet(tmp_path))
