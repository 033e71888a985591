"""Fills a directory with every wheel of a lock, and says of each wheel there whether it is whole.

An interrupted fetch goes on where it stopped: wheels that are there and have the lock's sha256 are
not fetched again; one that has another sha256 is named, with both, and fetched anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsctl.engine.lockfile import TORCH_CPU_INDEX, Lock, Locked
from dsctl.engine.pip_errors import explain_pip
from dsctl.engine.subprocesses import ProgramFailedError, run_watched
from dsctl.errors import ConfigError
from dsctl.files import write_atomically
from dsctl.paths import make_writable
from dsctl.progress import Progress, Rate, Reporter

PIP = ("-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
LOCKED = ("--no-deps", "--require-hashes", "--only-binary=:all:")
_BATCH = 12
_SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Machine:
    """What the wheels are for: a Python version ("3.11") and, unless it is this machine's own,
    the platform tags it takes."""

    python: str
    platforms: tuple[str, ...] = ()

    def pip_options(self) -> list[str]:
        """pip's options for a machine other than the one it runs on."""
        if not self.platforms:
            return []
        named = [option for tag in self.platforms for option in ("--platform", tag)]
        return [*named, "--python-version", self.python, "--implementation", "cp"]


#: Debian 12 on x86-64: Python 3.11 and glibc 2.36, whatever runs `dsctl image build`.
DEBIAN_12 = Machine(
    python="3.11",
    platforms=(
        *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)),
        *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"),
    ),
)


@dataclass(frozen=True)
class Corrupt:
    """A wheel whose content is not what the lock names."""

    path: Path
    found: str
    expected: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.expected) == 1:
            return f"{self.path} has the sha256 {self.found} and not {self.expected[0]}"
        listed = f"none of the {len(self.expected)} that the lock has ({self.expected[0]} …)"
        return f"{self.path} has the sha256 {self.found}, {listed}"


@dataclass(frozen=True)
class Stock:
    """What a wheelhouse has of a lock: good wheels by name, what is missing, what is corrupted."""

    good: dict[str, Path]
    missing: tuple[Locked, ...]
    corrupt: tuple[Corrupt, ...]


def take_stock(lock: Lock, wheelhouse: Path, python: str) -> Stock:
    """Compare every wheel in the directory with the lock, by its sha256."""
    good: dict[str, Path] = {}
    corrupt = []
    wanted = {_normal(r.name): r for r in lock.wanted(python)}
    sums = _read_sums(wheelhouse)
    for path in sorted(wheelhouse.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        requirement = wanted.get(_normal(name))
        if requirement is None or _version(requirement) != version.replace("_", "-"):
            continue  # of another lock: no business of ours
        found = _sha256(path)
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement.text))
        if found in hashes:
            good[_normal(name)] = path
        else:
            noted = sums.get(path.name)
            corrupt.append(Corrupt(path, found, (noted,) if noted in hashes else hashes))
    missing = tuple(r for name, r in wanted.items() if name not in good)
    return Stock(good=good, missing=missing, corrupt=tuple(corrupt))


def fetch_wheels(
    lock: Lock, wheelhouse: Path, report: Reporter, machine: Machine | None = None
) -> None:
    """Fill `wheelhouse` with every wheel of the lock for `machine` (by default this one).

    Raises:
        DsctlError: the index is out of reach, a hash differs, the disk is full.
    """
    python = base_python(lock) if machine is None else Path(sys.executable)
    machine = machine or Machine(version_of(python))
    make_writable(wheelhouse, "wheelhouse")
    stock = take_stock(lock, wheelhouse, machine.python)
    for corrupt in stock.corrupt:
        report(Progress(f"fetching again: {corrupt}"))
        corrupt.path.unlink()
    rate = Rate(time.monotonic)
    others = tree_bytes(wheelhouse) - sum(path.stat().st_size for path in stock.good.values())

    def tick() -> None:
        done = float(tree_bytes(wheelhouse) - others)
        report(rate.update("fetching the engine's wheels", done, lock.download_bytes, "bytes"))

    for batch in _batches(stock.missing):
        _fetch(python, batch, wheelhouse, machine, lock.name, tick)
        tick()
    _write_sums(wheelhouse)


def base_python(lock: Lock) -> Path:
    """An interpreter the lock has wheels for: ours, or one on PATH.

    Raises:
        ConfigError: none found; says which versions serve.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own in lock.pythons:
        return Path(sys.executable)
    for version in lock.pythons:
        found = shutil.which(f"python{version}")
        if found:
            return Path(found)
    wanted = lock.pythons[-1]
    raise ConfigError(
        f"the engine needs Python {' or '.join(lock.pythons)}; this one is {own} and none of those "
        "is on PATH",
        remedy=f"install one of them with its venv module, e.g. `apt-get install python{wanted} "
        f"python{wanted}-venv` where the distribution has it, else `uv python install {wanted}`",
    )


def version_of(python: Path) -> str:
    """The version ("3.11") of an interpreter that `base_python` gave."""
    if python == Path(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return python.name.removeprefix("python")


def pip_environment() -> dict[str, str]:
    """Our environment with the user's pip settings, less what would redirect the install."""
    leave_out = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if k not in leave_out}


def tree_bytes(root: Path) -> int:
    """Bytes of all files below a directory that may change meanwhile."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += Path(directory, name).lstat().st_size
            except FileNotFoundError:  # pip moves files while we count
                continue
    return total


def _batches(missing: Sequence[Locked]) -> Iterator[list[Locked]]:
    """What is to be fetched, torch first (it alone may need a second index)."""
    torch = [r for r in missing if r.name == "torch"]
    rest = [r for r in missing if r.name != "torch"]
    if torch:
        yield torch
    for start in range(0, len(rest), _BATCH):
        yield rest[start : start + _BATCH]


def _fetch(
    python: Path,
    batch: list[Locked],
    wheelhouse: Path,
    machine: Machine,
    lock: str,
    tick: Callable[[], None],
) -> None:
    requirements = wheelhouse / ".batch.txt"
    requirements.write_text("\n".join(r.text for r in batch) + "\n")
    scratch = wheelhouse / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [str(python), *PIP, "download", "-d", str(wheelhouse), *LOCKED]
    command += [*machine.pip_options(), "-r", str(requirements)]
    env = pip_environment() | {"TMPDIR": str(scratch)}
    try:
        run_watched(command, env=env, tick=tick)
    except ProgramFailedError as first:
        if not batch[0].is_torch_for_cpu:  # PyPI has the others; that index has other hashes
            raise explain_pip(first, "fetching the engine's wheels", lock) from None
        try:
            run_watched([*command, "--index-url", TORCH_CPU_INDEX], env=env, tick=tick)
        except ProgramFailedError as second:
            raise explain_pip(second, "fetching torch's wheel", lock) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        requirements.unlink(missing_ok=True)


def _write_sums(wheelhouse: Path) -> None:
    """Note each wheel's sha256, as pip has just checked it against the lock: the lock itself does
    not say which of a release's hashes belongs to which file. `sha256sum -c` reads it too."""
    sums = {**_read_sums(wheelhouse)}
    for path in wheelhouse.glob("*.whl"):
        if path.name not in sums:
            sums[path.name] = _sha256(path)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_atomically(wheelhouse / _SUMS, "".join(lines))


def _read_sums(wheelhouse: Path) -> dict[str, str]:
    try:
        lines = (wheelhouse / _SUMS).read_text().splitlines()
    except OSError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _version(requirement: Locked) -> str:
    return requirement.text.split("==", 1)[1].split("\\")[0].split(";")[0].split()[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name.lower())
