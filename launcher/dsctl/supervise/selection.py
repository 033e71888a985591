"""What a start takes from its profile: where to listen, what to serve, what to ask, how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.errors import ConfigError, NotGoodError
from dsctl.model.endpoint import Endpoint
from dsctl.paths import shipped

if TYPE_CHECKING:
    from dsctl.engine.choice import Choice
    from dsctl.model.facts import Facts
    from dsctl.model.profile import Profile

_DEFAULT_PORT = 8000
_DEFAULT_TIMEOUT_S = 900.0


def refuse_what_cannot_start(profile: Profile) -> None:
    """A profile that this dsctl cannot start says why, once its checks and plan have been told.

    Raises:
        NotGoodError: unsupported, or in need of parts that are not built yet.
    """
    from dsctl.planning.startable import lack_of

    lack = lack_of(profile)
    if lack is not None:
        raise NotGoodError(
            f"profile {profile.id} cannot be started: {lack.why}", remedy=lack.remedy
        )


def endpoint_of(profile: Profile) -> Endpoint:
    """Loopback at the profile's port."""
    port = profile.value("port", _DEFAULT_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigError(
            f"profile {profile.id}, key 'port': {port!r} is no TCP port",
            remedy="give a number from 1 to 65535, e.g. `--set port=8000`",
        )
    return Endpoint(port=port)


def checkpoint_of(profile: Profile) -> Path:
    """The checkpoint's directory, there or not (check `model.checkpoint` tells).

    A relative one that is not here is one that ships with dsctl.
    """
    named = Path(profile.model.checkpoint).expanduser()
    directory = named if named.is_absolute() or named.is_dir() else shipped_or(named)
    return directory.absolute()


def shipped_or(path: Path) -> Path:
    """The shipped file of that relative path, or the path itself where none ships."""
    try:
        return shipped(*path.parts)
    except ConfigError:
        return path


def engine_of(profile: Profile, asked: str | None, facts: Facts) -> Choice:
    """`process` or `docker`, and why."""
    from dsctl.engine.choice import choose_engine
    from dsctl.engine.containers import named_images

    def images() -> tuple[str, str]:
        named = named_images(profile)
        return named.engine, named.gateway

    return choose_engine(profile, asked, facts.docker, images)


def timeout_of(profile: Profile) -> float:
    """Seconds a start may take before it is given up."""
    limit = profile.limits.get("start_timeout_s")
    return float(limit.value) if limit is not None else _DEFAULT_TIMEOUT_S
