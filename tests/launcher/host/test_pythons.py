"""Interpreters, their headers, and compilers: looked for, never run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsctl.host import pythons as subject


def interpreter(directory: Path, content: bytes) -> Path:
    program = directory / "bin" / "python3.11"
    program.parent.mkdir(parents=True)
    program.write_bytes(content)
    program.chmod(0o755)
    return program


def test_headers_lie_below_the_prefix_of_the_program_itself(tmp_path: Path) -> None:
    program = interpreter(tmp_path / "real", b"\x7fELF")
    link = tmp_path / "python3.11"
    link.symlink_to(program)
    assert subject._headers(link, "3.11") is False
    header = tmp_path / "real/include/python3.11/Python.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert subject._headers(link, "3.11") is True


def test_a_script_in_its_place_tells_nothing(tmp_path: Path) -> None:
    assert subject._headers(interpreter(tmp_path, b"#!/bin/sh\n"), "3.11") is None
    assert subject._headers(tmp_path / "gone", "3.11") is None


def test_ours_is_asked_itself() -> None:
    (ours,) = [p for p in subject.pythons() if p.path == sys.executable]
    assert ours.headers is not None


def test_compilers_are_looked_for_where_the_engine_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcc = tmp_path / "gcc"
    gcc.touch()
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subject, "PROGRAMS", ("/nonexistent",))
    assert subject.compilers() == ()
    monkeypatch.setattr(subject, "PROGRAMS", ("/nonexistent", str(tmp_path)))
    assert subject.compilers() == ("gcc",)
