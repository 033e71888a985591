"""What a failed `docker build` says becomes one line with a remedy and an exit code."""

from __future__ import annotations

import pytest

from dsctl.errors import ExitCode
from dsctl.image.buildkit import explain


@pytest.mark.parametrize(
    ("output", "says", "code"),
    [
        (
            "#12 ERROR: failed to copy: write /x: no space left on device",
            "filled up while building",
            ExitCode.USAGE,
        ),
        (
            "failed to solve: rpc error: code = Unavailable desc = closing transport due to: "
            "connection error: desc = error reading from server: EOF",
            "engine stopped while building",
            ExitCode.NOT_GOOD,
        ),
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            "engine stopped while building",
            ExitCode.NOT_GOOD,
        ),
        ("/context/inside/unpack.sh: 12: dpkg-deb: not found", "no dpkg-deb", ExitCode.USAGE),
        (
            "#9 1.2 SomethingError: odd\nfailed to solve: error: exit code 1",
            "docker build failed: failed to solve: error: exit code 1",
            ExitCode.NOT_GOOD,
        ),
        ("", "it said nothing", ExitCode.NOT_GOOD),
    ],
)
def test_the_reason_is_named(output: str, says: str, code: ExitCode) -> None:
    error = explain(output)
    assert says in error.message
    assert "\n" not in error.message
    assert error.remedy
    assert error.exit_code == code


@pytest.mark.parametrize("stopped", [True, False])
def test_a_step_that_failed_without_a_reason_may_have_been_ended_by_the_engine(
    stopped: bool,
) -> None:
    error = explain("executor failed running [/bin/sh -eu x]: exit code: 1", lambda: stopped)
    assert ("engine stopped while building" in error.message) == stopped
