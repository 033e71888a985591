"""The Docker engine as vetting uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsctl.engine.docker_client import connect, told
from dsctl.errors import ConfigError

if TYPE_CHECKING:
    import docker

#: A busy engine takes long to make or remove a container of a large image.
_TIMEOUT_S = 180


@contextmanager
def engine(doing: str) -> Iterator[docker.DockerClient]:
    """A client of the engine that `docker` itself would use.

    Raises:
        DsctlError: no engine answers, or it failed while `doing`.
    """
    client = connect(timeout_s=_TIMEOUT_S)
    try:
        with told(doing):
            yield client
    finally:
        client.close()


def find(client: docker.DockerClient, name: str) -> dict[str, Any]:
    """What the engine knows about an image it has; nothing is pulled.

    Raises:
        ConfigError: it has no image of that name, or the name is none.
    """
    from docker.errors import APIError, ImageNotFound

    try:
        found: dict[str, Any] = client.api.inspect_image(name)
    except ImageNotFound:
        raise ConfigError(
            f"no image {name} on this machine (nothing is pulled here)",
            remedy=f"`docker pull {name}` where there is a network; `docker images` lists all",
        ) from None
    except APIError as error:
        if not error.is_client_error():
            raise
        raise ConfigError(
            f"{name!r} is no name of an image: {error.explanation}",
            remedy="give NAME@sha256:DIGEST, NAME:TAG or an image id",
        ) from None
    return found
