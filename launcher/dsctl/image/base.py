"""The base image: which one, whether it is the one that was meant, and a name nobody else moves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.engine.docker_client import told
from dsctl.errors import ConfigError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

#: Used when nobody names another; DSCTL_IMAGE_BASE and `--base` do.
DEFAULT = "debian:bookworm-slim"
VARIABLE = "DSCTL_IMAGE_BASE"
#: What `held` names: the last part is the process that holds it.
_HELD_NAME = re.compile(r"dsctl/base:.+-(?P<process>\d+)")


@dataclass(frozen=True)
class Base:
    """A base that is on this machine: `digest` is the registry's if it has one, else its id."""

    reference: str
    digest: str
    id: str


def find_base(client: DockerClient, named: str) -> Base:
    """The base image of this name (`NAME:TAG`, `NAME@sha256:…`, `NAME:TAG@sha256:…`); never pulled.

    Raises:
        ConfigError: it is not on this machine, or has another digest.
    """
    name, _, digest = named.partition("@")
    image = _look_up(client, name) or (_look_up(client, named) if digest else None)
    if image is None:
        raise ConfigError(
            f"the base image {named} is not on this machine",
            remedy=f"`docker pull {named}` where there is a network, or name one you have: "
            "`--base NAME@sha256:…` (Debian-like, with dpkg-deb and tar)",
        )
    known = {str(image.id), *(d.partition("@")[2] for d in image.attrs.get("RepoDigests") or [])}
    if digest and digest not in known:
        raise ConfigError(
            f"the base image {name} is not {digest}: here it is {' or '.join(sorted(known))}",
            remedy="name the digest that you trust, or load that image (`docker load`)",
        )
    registry = sorted(known - {str(image.id)})
    return Base(named, digest or (registry or [str(image.id)])[0], str(image.id))


@contextmanager
def held(client: DockerClient, base: Base) -> Iterator[str]:
    """A name for the base that stands for just this image while it is used, and no longer."""
    from docker.errors import DockerException

    _drop_stale(client)
    name = f"dsctl/base:{base.id.removeprefix('sha256:')[:12]}-{os.getpid()}"
    repository, _, tag = name.partition(":")
    with told("naming the base image"):
        client.images.get(base.id).tag(repository, tag=tag)
    try:
        yield name
    finally:
        with suppress(DockerException, OSError):  # the engine may be gone: then so is the name
            client.images.remove(name)


def _drop_stale(client: DockerClient) -> None:
    """Names that a killed build still holds: they end in the number of a process that is gone."""
    from docker.errors import DockerException

    with suppress(DockerException, OSError):
        held_names = [tag for image in client.images.list("dsctl/base") for tag in image.tags]
        for name in held_names:
            ours = _HELD_NAME.fullmatch(name)  # a name that a person gave stays
            if ours is not None and not Path("/proc", ours["process"]).exists():
                client.images.remove(name)


def _look_up(client: DockerClient, name: str) -> Image | None:
    from docker.errors import ImageNotFound

    with told(f"looking for {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            return None
