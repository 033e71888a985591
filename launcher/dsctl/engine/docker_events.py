"""What the Docker engine tells about a deployment's containers, asked for from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsctl.engine.docker import LABEL
from dsctl.engine.docker_client import connect, told
from dsctl.model.sample import ContainerEvent

if TYPE_CHECKING:
    from docker import DockerClient

#: What changes a container; not what people look at it with (exec, attach, top).
ACTIONS = ("oom", "die", "kill", "start", "stop", "restart", "pause", "unpause", "destroy")
_PATIENCE_S = 10


class DockerEvents:
    """Each event of a project's containers once, from now on.

    It asks for the span since it asked last, so nothing is lost where the engine was away for a
    while, and nothing waits for an event. `clock` is that of the samples, `wall` Unix time.
    """

    def __init__(
        self,
        project: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._filters = {
            "type": "container",
            "label": f"{LABEL}={project}",
            "event": list(ACTIONS),
        }
        self._clock, self._wall = clock, wall
        self._since_ns = int(wall() * 1e9)
        self._client: DockerClient | None = None

    def __call__(self) -> list[ContainerEvent]:
        """What is new.

        Raises:
            DsctlError: the engine does not answer; the next call connects anew.
        """
        until_ns = int(self._wall() * 1e9)
        try:
            with told("it was asked for events"):
                if self._client is None:
                    self._client = connect(timeout_s=_PATIENCE_S)
                told_now = list(
                    self._client.events(
                        since=_seconds(self._since_ns),
                        until=_seconds(until_ns),
                        filters=self._filters,
                        decode=True,
                    )
                )
        except BaseException:
            self.close()
            raise
        # both ends of the span belong to it
        new = [event for event in told_now if self._since_ns < int(event["timeNano"]) <= until_ns]
        self._since_ns = until_ns
        return [self._event(event) for event in new]

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            with suppress(Exception):
                self._client.close()
            self._client = None

    def _event(self, told_: dict[str, Any]) -> ContainerEvent:
        code = told_["Actor"].get("Attributes", {}).get("exitCode")
        ago_s = self._wall() - int(told_["timeNano"]) / 1e9
        return ContainerEvent(
            t=self._clock() - ago_s,
            action=told_["Action"],
            exit_code=int(code) if code is not None else None,
        )


def _seconds(nanoseconds: int) -> str:
    """Unix time as the engine's API takes it: whole seconds, a dot, nanoseconds."""
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"
