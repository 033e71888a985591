"""Finds the image of what dsctl ships, or makes it; one build of a target at a time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsctl.engine.docker_client import connect, told
from dsctl.engine.pip_errors import WHEELHOUSE_VARIABLE
from dsctl.errors import DsctlError
from dsctl.files import exclusive
from dsctl.image.build import build, check_can_build
from dsctl.image.names import LABEL, TARGETS, ImageRef, Target, inputs_of
from dsctl.image.recipe import Recipe, fetch, recipe
from dsctl.paths import Paths, make_writable, user_paths
from dsctl.progress import Progress, Reporter, silent

if TYPE_CHECKING:
    from docker.models.images import Image


def find_image(target: Target) -> ImageRef | None:
    """The up-to-date image of a target, if the Docker engine has it.

    Raises:
        DsctlError: no Docker engine answers.
    """
    return _find(inputs_of(target).name)


def list_images() -> list[ImageRef]:
    """Every image that a dsctl built here, newest first.

    Raises:
        DsctlError: no Docker engine answers.
    """
    client = connect()
    try:
        with told("listing images"):
            images = client.images.list(filters={"label": f"{LABEL}target"})
    finally:
        client.close()
    found = [
        _reference(image) for image in images if _labels(image).get(f"{LABEL}target") in TARGETS
    ]
    return sorted(found, key=lambda ref: ref.created, reverse=True)


def ensure_image(
    target: Target,
    *,
    report: Reporter = silent,
    base: str | None = None,
    wheelhouse: Path | None = None,
    offline: bool = False,
    locks: Path | None = None,
    again: bool = False,
    paths: Paths | None = None,
) -> ImageRef:
    """The up-to-date image of a target, built now unless it is there.

    `base`: the image to build on (default: DSCTL_IMAGE_BASE, else debian:bookworm-slim), which must
    be on this machine. `wheelhouse`: where what was fetched lies (see `default_wheelhouse`).
    `offline`: build from it as it is. `locks`: a directory that replaces the shipped locks.
    `again`: build even so, every step.

    Raises:
        DsctlError: said in one line, with a remedy; nothing of a failed build is left but Docker's
            build cache.
    """
    made = recipe(target, locks)
    where = paths or user_paths()
    house = wheelhouse or default_wheelhouse(target, where)
    make_writable(where.cache, "cache")
    lock_file = where.cache / f".image-{target}.lock"

    def waiting(holder: str) -> None:
        by = f" (pid {holder})" if holder else ""
        report(Progress(f"waiting for another dsctl{by} that is building {made.inputs.name}"))

    with exclusive(lock_file, holder=str(os.getpid()), wait=True, on_wait=waiting):
        found = None if again else _find(made.inputs.name)
        if found is not None:
            return found
        return _make(made, house, report, base=base, offline=offline, again=again)


def fetch_only(target: Target, wheelhouse: Path, report: Reporter, locks: Path | None) -> None:
    """The first step alone: fill the wheelhouse; needs no Docker."""
    fetch(recipe(target, locks), wheelhouse, report)


def default_wheelhouse(target: Target, paths: Paths) -> Path:
    """Where what is fetched for a target lies: DSCTL_WHEELHOUSE, else in the user's cache."""
    brought = os.environ.get(WHEELHOUSE_VARIABLE)
    return Path(brought) if brought else paths.cache / "wheelhouse" / target


def _make(
    made: Recipe,
    wheelhouse: Path,
    report: Reporter,
    *,
    base: str | None,
    offline: bool,
    again: bool,
) -> ImageRef:
    check_can_build(base)  # before a long fetch
    if not offline:
        fetch(made, wheelhouse, report)
    before = _find(made.inputs.name)
    try:
        build(made, wheelhouse, report, base=base, again=again)
    finally:  # an interrupt may come too late to keep the name from moving
        if before is not None:
            _forget(before.id)
    built = _find(made.inputs.name)
    assert built is not None, f"{made.inputs.name} was built and is not there"
    return built


def _forget(image: str) -> None:
    """Remove an image if it has lost its name to another, unless something runs from it."""
    from docker.errors import DockerException

    with contextlib.suppress(DockerException, DsctlError, OSError):
        client = connect()
        try:
            if not client.images.get(image).tags:
                client.images.remove(image)
        finally:
            client.close()


def _find(name: str) -> ImageRef | None:
    from docker.errors import ImageNotFound

    client = connect()
    try:
        with told(f"looking for {name}"):
            try:
                image = client.images.get(name)
            except ImageNotFound:
                return None
    finally:
        client.close()
    reference = _reference(image, name)
    return reference if reference.target in TARGETS else None


def _reference(image: Image, name: str | None = None) -> ImageRef:
    own = _labels(image)
    names = [n for n in image.tags if not n.endswith(":latest")] or image.tags or [str(image.id)]
    return ImageRef(
        tag=name or names[0],
        id=str(image.id),
        target=cast(Target, own.get(f"{LABEL}target", "")),
        size_bytes=int(image.attrs.get("Size") or 0),
        created=str(image.attrs.get("Created") or ""),
        labels=own,
    )


def _labels(image: Any) -> dict[str, str]:
    return dict((image.attrs.get("Config") or {}).get("Labels") or {})
