"""What an image is built from, read and checked: locks, wheels, packages, files, versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dsctl.engine.environment import vllm_metadata
from dsctl.engine.lockfile import Lock, read_lock
from dsctl.engine.wheelhouse import DEBIAN_12, Stock, fetch_wheels, take_stock
from dsctl.errors import ConfigError
from dsctl.image.debs import DebLock, fetch_debs, missing_debs, read_deb_lock
from dsctl.image.names import Inputs, Target, inputs_of, lock_directory
from dsctl.paths import shipped
from dsctl.progress import Progress, Reporter

#: In the environment, needed to build the runtime only: in no image.
BUILD_ONLY = ("flit-core",)
#: Distributions that make kernels or bring them, by the name a label gives them.
KERNELS = ("b12x", "flashinfer-python", "tilelang", "triton")


@dataclass(frozen=True)
class Recipe:
    """Everything about a target but the bytes. `engine` is None for the gateway."""

    target: Target
    inputs: Inputs
    debs: DebLock
    tools: Lock
    engine: Lock | None

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks whose wheels the build needs."""
        return (self.tools, *([self.engine] if self.engine else []))

    @property
    def versions(self) -> dict[str, str]:
        """What is in it, by distribution: every wheel of the engine."""
        if self.engine is None:
            return {}
        return {r.name: _pinned(r.text) for r in self.engine.wanted(DEBIAN_12.python)}

    def requirements(self) -> str:
        """The requirements file that pip installs the engine from."""
        if self.engine is None:
            return ""
        wanted = self.engine.wanted(DEBIAN_12.python)
        return "\n".join(r.text for r in wanted if r.name not in BUILD_ONLY) + "\n"

    def site_files(self) -> dict[str, str]:
        """Small files that go beside the wheels: path below site-packages, and content."""
        if self.engine is None:
            return {}
        files = {"dsruntime.pth": "/opt/dsruntime\n"}
        return files | vllm_metadata(self.engine)

    def room_bytes(self) -> int:
        """About what a build takes on Docker's disk: the context, the stages, the image."""
        debs = 12 * self.debs.total_bytes
        if self.engine is None:
            return debs
        return debs + self.engine.download_bytes + self.engine.installed_bytes * 11 // 10


def recipe(target: Target, locks: Path | None = None) -> Recipe:
    """The recipe of a target; `locks` is a directory that replaces the locks dsctl ships.

    Raises:
        ConfigError: a lock is missing or malformed.
    """
    directory = locks or lock_directory()
    return Recipe(
        target=target,
        debs=read_deb_lock(directory / f"{target}.debs.json"),
        tools=read_lock("tools", directory),
        engine=None if target == "gateway" else read_lock(target, directory),
        inputs=inputs_of(target, locks),
    )


def fetch(made: Recipe, wheelhouse: Path, report: Reporter) -> None:
    """Everything the build needs, into the wheelhouse; goes on where it stopped."""
    for lock in made.locks:
        fetch_wheels(lock, wheelhouse, report, DEBIAN_12)
    fetch_debs(made.debs, wheelhouse / "debs", report)
    report(Progress(f"everything is in {wheelhouse}"))


def checked_wheels(made: Recipe, wheelhouse: Path) -> list[Path]:
    """The wheels for the build, each with the lock's sha256; and every Debian package is there.

    Raises:
        ConfigError: something is missing or corrupted; a corrupted file is named with the sha256
            it has and the one it should have.
    """
    if not wheelhouse.is_dir():
        raise ConfigError(f"{wheelhouse}: no such directory", remedy=_refetch(made, wheelhouse))
    found: list[Path] = []
    for lock in made.locks:
        stock = take_stock(lock, wheelhouse, DEBIAN_12.python)
        _refuse_gaps(made, wheelhouse, stock)
        found += stock.good.values()
    missing, corrupt = missing_debs(made.debs, wheelhouse / "debs")
    if corrupt or missing:
        raise ConfigError(
            corrupt[0]
            if corrupt
            else f"{wheelhouse}/debs lacks {len(missing)} Debian packages, {missing[0].name} "
            f"{missing[0].version} among them",
            remedy=_refetch(made, wheelhouse),
        )
    return sorted(set(found))


def _refuse_gaps(made: Recipe, wheelhouse: Path, stock: Stock) -> None:
    if stock.corrupt:
        raise ConfigError(str(stock.corrupt[0]), remedy=_refetch(made, wheelhouse))
    if stock.missing:
        raise ConfigError(
            f"{wheelhouse} lacks {len(stock.missing)} wheels of the lock, {stock.missing[0].name} "
            "among them",
            remedy=_refetch(made, wheelhouse),
        )


def _refetch(made: Recipe, wheelhouse: Path) -> str:
    return (
        "where there is a network run `dsctl image build --target "
        f"{made.target} --fetch-only --wheelhouse {wheelhouse}`, and bring the directory here"
    )


def runtime_version() -> str:
    """The version of our runtime."""
    text = (shipped("runtime") / "pyproject.toml").read_text()
    found = re.search(r'^version = "([^"]+)"', text, re.M)
    return found[1] if found else "unknown"


def _pinned(text: str) -> str:
    return text.split("==", 1)[1].split("\\")[0].split(";")[0].split()[0]
