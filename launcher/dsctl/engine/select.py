"""The engine of a kind."""

from __future__ import annotations

from dsctl.engine.base import Engine
from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError


def engine_for(kind: str, state: StateDirectory) -> Engine:
    """The engine of that kind over this state directory."""
    if kind == "process":
        from dsctl.engine.process import ProcessEngine

        return ProcessEngine(state)
    if kind == "docker":
        from dsctl.engine.docker import DockerEngine

        return DockerEngine(state)
    raise ConfigError(
        f"--engine {kind}: unknown", remedy="use `--engine process` or `--engine docker`"
    )
