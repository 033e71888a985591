"""Puts our runtime (the `dsruntime` wheel) where the engine finds it.

It is installed into a directory of its own, keyed by its content, and put on the engine's
PYTHONPATH: a change of the runtime never touches the 3 GB environment, and several deployments may
run different ones.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from dsctl.engine.environment import Environment
from dsctl.engine.subprocesses import ProgramFailedError, run_watched
from dsctl.errors import DsctlError
from dsctl.paths import Paths, make_writable, shipped


def runtime_directory(paths: Paths) -> Path:
    """Where the runtime of this dsctl is installed, or will be."""
    return paths.runtimes / runtime_digest()[:12]


def runtime_digest() -> str:
    """sha256 over the names and contents of the runtime's source files, hexadecimal."""
    return tree_digest(shipped("runtime"))


def ensure_runtime(environment: Environment, paths: Paths) -> Path:
    """The directory that holds the installed runtime, made now if need be.

    Raises:
        DsctlError: it could not be installed; the message has pip's last words.
    """
    source = shipped("runtime")
    target = runtime_directory(paths)
    if target.is_dir():
        return target
    make_writable(paths.runtimes, "runtime")
    scratch = Path(tempfile.mkdtemp(dir=paths.runtimes, prefix=".new-"))
    try:
        _install(environment, source, scratch)
        try:
            (scratch / "installed").rename(target)
        except OSError:
            if not target.is_dir():  # not simply another dsctl that was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _install(environment: Environment, source: Path, scratch: Path) -> None:
    copy = scratch / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    command = [str(environment.python), "-P", "-m", "pip", "install", *options]
    try:
        run_watched([*command, "--target", str(scratch / "installed"), str(copy)])
    except ProgramFailedError as failure:
        raise DsctlError(
            f"the runtime could not be installed from {source}: {failure.output.strip()[-300:]}",
            remedy=f"remove the engine environment ({environment.directory}) and try again",
        ) from None


def tree_digest(source: Path) -> str:
    """sha256 over the paths and contents of all files below a directory but Python's caches."""
    state = hashlib.sha256()
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        if "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        state.update(str(path.relative_to(source)).encode() + b"\0")
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()
