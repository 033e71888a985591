"""Reads the hash-locked requirement files that engine environments are made from."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dsctl.errors import ConfigError

#: Wheels whose CPU build is not on PyPI; tried from the configured index first, then from here.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Locked:
    """One locked requirement: its distribution name and its text with all hashes."""

    name: str
    text: str
    marker: str | None

    @property
    def is_torch_for_cpu(self) -> bool:
        """Whether it is a build of torch that PyPI does not have."""
        return re.match(r"torch==[^\s;\\]+\+cpu\b", self.text) is not None


@dataclass(frozen=True)
class Lock:
    """A lock file: every wheel with version and sha256.

    `download_bytes` and `installed_bytes` are what CPython 3.11 on x86-64 needs, measured when the
    lock was made (its header says so).
    """

    name: str
    path: Path
    requirements: tuple[Locked, ...]
    pythons: tuple[str, ...]
    download_bytes: int
    installed_bytes: int

    @cached_property
    def digest(self) -> str:
        """sha256 of the file's bytes, hexadecimal."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def wanted(self, python: str) -> tuple[Locked, ...]:
        """The requirements whose marker holds for this Python version ("3.11") on this machine."""
        from packaging.markers import Marker

        environment = {"python_version": python, "python_full_version": f"{python}.0"}
        return tuple(
            r
            for r in self.requirements
            if r.marker is None or Marker(r.marker).evaluate(environment)
        )


_HEADER = re.compile(r"^# (pythons|download-bytes|installed-bytes): (.+)$", re.M)
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")


def read_lock(name: str, directory: Path | None = None) -> Lock:
    """The lock of this name (`cpu`, `cuda`) that ships with dsctl, or lies in `directory`.

    Raises:
        ConfigError: the lock is missing or has no header.
    """
    path = (directory or Path(__file__).parent.parent / "data" / "locks") / f"{name}.lock"
    try:
        text = path.read_text()
    except OSError:
        raise ConfigError(
            f"engine environment {name!r}: no lock {path}", remedy="install dsctl again"
        ) from None
    header = dict(_HEADER.findall(text))
    try:
        return Lock(
            name=name,
            path=path,
            requirements=tuple(_requirements(text)),
            pythons=tuple(header["pythons"].split()),
            download_bytes=int(header["download-bytes"]),
            installed_bytes=int(header["installed-bytes"]),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{path}: header is incomplete ({error})", remedy="run tools/lock.py again"
        ) from None


def _requirements(text: str) -> list[Locked]:
    """Split the file into requirements; a requirement goes on while lines end in a backslash."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for block in re.split(r"(?<!\\)\n", body):
        match = _REQUIREMENT.match(block)
        if match is None:
            continue
        first_line = block.split("\\\n", 1)[0].removesuffix("\\")
        marker = first_line.split(";", 1)[1].strip() if ";" in first_line else None
        found.append(Locked(name=match["name"], text=block, marker=marker))
    return found
