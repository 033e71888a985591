"""Runs a command line in this process."""

from __future__ import annotations

from dsctl.cli.app import build_app, run


def main(arguments: list[str]) -> int:
    """The exit code of `dsctl ARGUMENTS`."""
    return int(run(build_app(), arguments))
