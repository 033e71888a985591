"""`dsctl unit` prints what a boot can start, and refuses at once what it could not."""

from __future__ import annotations

import pytest

from dsctl.cli.app import build_app, run


def test_an_unknown_profile_is_refused_now_and_not_at_the_next_boot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(build_app(), ["unit", "--profile", "cpu-canari"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "cpu-canary" in told.err
    assert run(build_app(), ["unit", "--profile", "cpu-canary", "--set", "prot=1"]) == 2
    assert "did you mean 'port'" in capsys.readouterr().err


@pytest.mark.parametrize("profile", ["cpu-canary", "auto"])
def test_a_known_one_becomes_a_unit(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["unit", "--profile", profile]) == 0
    assert "Type=notify" in capsys.readouterr().out


@pytest.mark.parametrize("user", ["a\nb", "%h", "", "a b"])
def test_what_is_no_user_never_gets_into_a_unit(
    user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), ["unit", "--profile", "cpu-canary", "--system", user]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no user name" in told.err
