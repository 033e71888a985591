"""What goes into an image, the digest of it, and the name and labels that follow."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from dsctl.engine.lockfile import read_lock
from dsctl.engine.runtime import runtime_digest, tree_digest
from dsctl.errors import ConfigError
from dsctl.model.base import Value
from dsctl.paths import shipped

Target = Literal["cpu", "cuda", "gateway"]
TARGETS: tuple[Target, ...] = ("cpu", "cuda", "gateway")

#: Repository by target.
REPOSITORIES: dict[Target, str] = {
    "cpu": "dsctl/engine-cpu",
    "cuda": "dsctl/engine-cuda",
    "gateway": "dsctl/gateway",
}

#: A site's own locks, for all that builds or names an image.
LOCKS_VARIABLE = "DSCTL_LOCKS"

#: Prefix of our labels: `dsctl.target`, `dsctl.inputs`, …
LABEL = "dsctl."


class ImageRef(Value):
    """An image that the Docker engine has. `tag` is its name, `id` the digest of its content."""

    tag: str
    id: str
    target: Target
    size_bytes: int
    created: str
    labels: dict[str, str]


class Inputs(Value):
    """Digests of what goes into an image, by kind; hexadecimal sha256."""

    target: Target
    parts: dict[str, str]

    @property
    def digest(self) -> str:
        """One digest of them all: equal inputs, equal image."""
        state = hashlib.sha256(self.target.encode())
        for name in sorted(self.parts):
            state.update(f"\0{name}={self.parts[name]}".encode())
        return state.hexdigest()

    @property
    def name(self) -> str:
        """The image's name and tag."""
        return f"{REPOSITORIES[self.target]}:{self.digest[:12]}"


def inputs_of(target: Target, locks: Path | None = None) -> Inputs:
    """What this dsctl would build `target` from; `locks` replaces the directory of locks."""
    directory = locks or lock_directory()
    parts = {
        "debian": _file_digest(directory / f"{target}.debs.json"),
        "dockerfile": _file_digest(shipped("Dockerfile")),
        "inside": tree_digest(inside()),
        "tools": _file_digest(directory / "tools.lock"),
    }
    if target == "gateway":
        parts["gateway"] = tree_digest(shipped("hardening", "gateway"))
    else:
        parts["lock"] = read_lock(target, directory).digest
        parts["runtime"] = runtime_digest()
    return Inputs(target=target, parts=parts)


def image_name(target: Target) -> str:
    """The name of the image that this dsctl builds, whether it is there or not."""
    return inputs_of(target).name


def lock_directory() -> Path:
    """The locks that ship with dsctl, or a site's own where DSCTL_LOCKS names their directory."""
    own = os.environ.get(LOCKS_VARIABLE)
    if own:
        return Path(own)
    return Path(__file__).parent.parent / "data" / "locks"


def inside() -> Path:
    """The programs that run while an image is built, and its entrypoint: none imports dsctl."""
    return Path(__file__).parent / "inside"


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}",
            remedy=f"give a directory with all locks (`--locks`, {LOCKS_VARIABLE}), or install "
            "dsctl again",
        ) from None
