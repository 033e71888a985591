"""Talks to the Docker engine: finds it, and turns what goes wrong into one line with a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.errors import DsctlError, EngineError, NotGoodError

if TYPE_CHECKING:
    from docker import DockerClient

_TIMEOUT_S = 60


def docker_address() -> str:
    """Where the engine listens.

    Raises:
        NotGoodError: there is no socket at all.
    """
    from dsctl.host.docker_info import engine_address

    address = engine_address(os.environ, Path.exists)
    if address is None:
        raise NotGoodError(
            "there is no Docker engine on this machine (no socket)",
            remedy="install Docker Engine (https://docs.docker.com/engine/install), or use "
            "`--engine process`",
        )
    return address


def connect(address: str | None = None, *, timeout_s: int = _TIMEOUT_S) -> DockerClient:
    """A client; nothing is asked yet but the engine's API version.

    Raises:
        NotGoodError: no engine answers.
    """
    import docker

    where = address or docker_address()
    with told("it was asked for its version"):
        return docker.DockerClient(base_url=where, timeout=timeout_s)


@contextmanager
def told(doing: str) -> Iterator[None]:
    """What the Docker engine or the way to it does wrong, as one line.

    Raises:
        DsctlError: an `EngineError` with a cause where the refusal is a known one.
    """
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        raise refusal(str(error.explanation or error), doing) from None
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise NotGoodError(
            f"the Docker engine does not answer while {doing}: {_inner(error)}",
            remedy="`sudo systemctl status docker` says why; or use `--engine process`",
        ) from None


def refusal(text: str, doing: str) -> DsctlError:
    """The error for what the Docker engine refused: with its cause where the text has one."""
    from dsctl.diagnose import diagnose

    said = " ".join(text.split())
    if "bind source path does not exist" in said:
        path = said.rpartition(": ")[2]
        return NotGoodError(
            f"{path} is not there for the Docker engine",
            remedy="give a directory of this machine; Docker Desktop must share it first",
        )
    if "no space left on device" in said.lower():
        return NotGoodError(
            f"the Docker engine has no room left on its disk while {doing}",
            remedy="`docker system df` shows what takes it, `docker image prune` frees some",
        )
    if "error setting rlimit" in said:
        return EngineError(
            "the Docker engine may not raise a limit the engine needs (locked memory, stack)",
            remedy="give dockerd the limit: LimitMEMLOCK=infinity in docker.service, then restart",
            cause="container.memlock-limit",
        )
    found = diagnose([said])
    if found.is_known:
        return EngineError(
            f"the Docker engine refused while {doing}: {said[:300]}",
            remedy=found.cause.remedy,
            cause=found.cause.id,
        )
    return EngineError(
        f"the Docker engine refused while {doing}: {said[:300]}",
        remedy="`docker info` and `journalctl -u docker -n 50` say more",
        cause="unknown",
    )


def _inner(error: BaseException) -> str:
    """The innermost reason: the outer ones only say that a connection was aborted."""
    reason: Any = error
    while True:
        inner = reason.__cause__ or (reason.args[-1] if reason.args else None)
        if not isinstance(inner, BaseException):
            text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            return str(text).splitlines()[0][:200]
        reason = inner
