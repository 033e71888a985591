"""Container or process: which engine a start takes when nobody says. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsctl.model.facts import Docker, DockerState

if TYPE_CHECKING:
    from dsctl.model.profile import Profile


@dataclass(frozen=True)
class Choice:
    """`process` or `docker`, and why in a sentence."""

    kind: str
    why: str


def choose_engine(
    profile: Profile,
    asked: str | None,
    docker: Docker | None,
    images: Callable[[], tuple[str, str]],
) -> Choice:
    """What was asked for; else containers where a Docker engine answers and has our images.

    `images` gives the names of the engine's and the gateway's. Without them the engine runs as a
    process: a first start must not turn into building images, for which a base is needed.
    """
    if asked is not None:
        return Choice(asked, "asked for")
    if profile.engine.external:
        return Choice("docker", "somebody else's image runs in a container only")
    if docker is None or docker.state is not DockerState.OK:
        return Choice("process", "no Docker engine answers")
    engine, gateway = images()
    missing = [name for name in (engine, gateway) if name not in (docker.images or ())]
    if missing:
        target = "gateway" if missing == [gateway] else profile.engine.environment
        return Choice(
            "process",
            f"Docker answers, but has no {missing[0]}; `dsctl image build --target {target}` makes "
            "it, `--engine docker` does so while starting",
        )
    return Choice("docker", "Docker answers and has the images; `--engine process` does without")
