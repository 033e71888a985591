"""Debian packages of an image: the lock, and a directory filled with what it names.

Each is taken from apt where the machine has it, else from Debian's archive, else from Debian's
archive of the day the lock was made; wherever it comes from, its sha256 decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from dsctl.engine.subprocesses import ProgramFailedError, run_watched
from dsctl.errors import ConfigError, DsctlError
from dsctl.model.base import Value
from dsctl.progress import Progress, Rate, Reporter

#: Debian's archive, and the one that keeps every version there ever was (snapshot.debian.org).
_ARCHIVE = "https://deb.debian.org"
_SNAPSHOT = "https://snapshot.debian.org/archive"


class Deb(Value):
    """One package: `path` is where it lies below the archive, `build` that no image gets it."""

    name: str
    version: str
    sha256: str
    size_bytes: int
    path: str
    build: bool = False

    @property
    def file_name(self) -> str:
        """Its name in the directory."""
        return self.path.rpartition("/")[2]


class DebLock(Value):
    """All packages of a target. `locked_at` (`20261201T042537Z`) names a day in the snapshots."""

    locked_at: str
    packages: tuple[Deb, ...]

    @property
    def image(self) -> tuple[Deb, ...]:
        """Those that the image gets."""
        return tuple(deb for deb in self.packages if not deb.build)

    @property
    def total_bytes(self) -> int:
        """What is to be fetched for all."""
        return sum(deb.size_bytes for deb in self.packages)


def read_deb_lock(path: Path) -> DebLock:
    """The lock in this file.

    Raises:
        ConfigError: it is missing or has not the form of one.
    """
    try:
        return DebLock.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", remedy="give a directory with all locks, or install again"
        ) from None
    except (ValidationError, json.JSONDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        where = ".".join(str(p) for p in first["loc"]) if first else "the file"
        raise ConfigError(
            f"{path}: {where}: {first['msg'] if first else error}",
            remedy="make it again with tools/lock_debs.py",
        ) from None


def missing_debs(lock: DebLock, directory: Path) -> tuple[list[Deb], list[str]]:
    """Packages that are not in the directory, and a sentence for each that is corrupted there."""
    missing, corrupt = [], []
    for deb in lock.packages:
        path = directory / deb.file_name
        if not path.exists():
            missing.append(deb)
            continue
        found = _sha256(path)
        if found != deb.sha256:
            corrupt.append(f"{path} has the sha256 {found} and not {deb.sha256}")
            missing.append(deb)
    return missing, corrupt


def fetch_debs(lock: DebLock, directory: Path, report: Reporter) -> None:
    """Fill the directory with the packages of the lock that are not there yet.

    Raises:
        DsctlError: a package is nowhere to be had, or has another sha256 everywhere.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing, corrupt = missing_debs(lock, directory)
    for sentence in corrupt:
        report(Progress(f"fetching again: {sentence}"))
    if missing:
        _from_apt(missing, directory)
        missing, _ = missing_debs(lock, directory)
    rate = Rate(time.monotonic)
    for deb in missing:
        _from_archive(deb, lock, directory)
        done = sum(d.size_bytes for d in lock.packages if (directory / d.file_name).exists())
        report(rate.update("fetching Debian's packages", done, lock.total_bytes, "bytes"))


def _from_apt(wanted: Sequence[Deb], directory: Path) -> None:
    """What apt can fetch of it: it may lack a version, or be another distribution's."""
    if shutil.which("apt-get") is None:
        return
    by_digest = {deb.sha256: deb for deb in wanted}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".apt-") as scratch:
        for batch in (wanted, *([deb] for deb in wanted)):
            left = [deb for deb in batch if not (directory / deb.file_name).exists()]
            if not left:
                continue
            names = [f"{deb.name}:amd64={deb.version}" for deb in left]
            sandbox = ["-o", "APT::Sandbox::User=root"]
            with contextlib.suppress(ProgramFailedError):  # it knows other versions: the archive
                run_watched(["apt-get", "download", "-q", *sandbox, *names], cwd=Path(scratch))
            for path in Path(scratch).glob("*.deb"):
                deb = by_digest.get(_sha256(path))
                if deb is not None:
                    path.replace(directory / deb.file_name)


def _from_archive(deb: Deb, lock: DebLock, directory: Path) -> None:
    """From Debian's archive; when it has moved on, from the snapshots."""
    import httpx

    archive, _, rest = deb.path.partition("/")
    reasons = []
    for url in (f"{_ARCHIVE}/{deb.path}", f"{_SNAPSHOT}/{archive}/{lock.locked_at}/{rest}"):
        half = directory / f".{deb.file_name}.part"
        try:
            with httpx.stream("GET", url, follow_redirects=True, timeout=60) as answer:
                answer.raise_for_status()
                with half.open("wb") as file:
                    for chunk in answer.iter_bytes():
                        file.write(chunk)
            found = _sha256(half)
            if found == deb.sha256:
                half.replace(directory / deb.file_name)
                return
            reasons.append(f"{url} has the sha256 {found}")
        except httpx.HTTPError as error:
            reasons.append(str(error).splitlines()[0] if str(error) else type(error).__name__)
        finally:
            half.unlink(missing_ok=True)
    raise DsctlError(
        f"{deb.name} {deb.version} cannot be fetched (sha256 {deb.sha256}): {'; '.join(reasons)}",
        remedy="on Debian 12 `apt-get update` helps; where only newer versions are offered, lock "
        "them with tools/lock_debs.py and give the directory with `--locks`",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
