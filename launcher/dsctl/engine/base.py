"""What every way of running the engine can do: the small protocol of `process` and `docker`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dsctl.model.deployment import Deployment

if TYPE_CHECKING:
    from dsctl.compose.spec import Deck


@dataclass(frozen=True)
class Ended:
    """How the engine ended: its exit code, or the signal that killed it. `t` in Unix seconds.

    `note`: what else is known (which container, out of memory).
    """

    code: int
    signal: int | None
    t: float
    note: str = ""

    def __str__(self) -> str:
        how = f"killed by signal {self.signal}" if self.signal else f"exit code {self.code}"
        return f"{how}, {self.note}" if self.note else how


@dataclass(frozen=True)
class EngineCommand:
    """What to run: the program with its arguments, its whole environment, where.

    `deck`: the containers it runs in, for the `docker` engine.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    deck: Deck | None = None


class Engine(Protocol):
    """Starts, watches and stops the thing that serves."""

    def start(self, deployment: Deployment, command: EngineCommand) -> Deployment:
        """Start it; returns the deployment with the engine's processes recorded."""

    def recorded(self, deployment: Deployment) -> Deployment:
        """The deployment with its engine's processes, where whoever started it was killed before
        it could record them; as it is otherwise."""

    def is_alive(self, deployment: Deployment) -> bool:
        """Whether the recorded engine runs."""

    def ended(self, deployment: Deployment) -> Ended | None:
        """How it ended, or None while it runs or when that is not known."""

    def stop(self, deployment: Deployment, *, grace_s: float) -> None:
        """Ask it to end, wait `grace_s`, then end it; returns when nothing of it is left."""

    def memory(self, deployment: Deployment) -> dict[str, int]:
        """Bytes in use now, by kind; empty when it does not run."""

    def log_path(self, deployment: Deployment) -> Path:
        """The file its output goes to."""
