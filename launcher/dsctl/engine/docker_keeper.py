"""Copies the containers' output to the deployment's log files, for as long as they live.

A process of its own, as the `process` engine's keeper is: it outlives every `dsctl`. Run as a
module with one argument, JSON: {"address", "logs": {container: path}}. When a container has ended,
the last line says how; when dockerd goes away it waits for its return.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.engine.identity import identify
from dsctl.engine.keeper import RotatingLog
from dsctl.model.deployment import ProcessIdentity

if TYPE_CHECKING:
    from docker import DockerClient

_LOG_MAX_BYTES = 64 << 20
_LOG_KEEP = 3
_AGAIN_S = 1.0
#: A daemon that has been away for so long is not coming back to its containers.
_GIVE_UP_S = 900.0


def start_keeper(address: str, logs: dict[str, str]) -> ProcessIdentity:
    """Start it in a session of its own."""
    spec = json.dumps({"address": address, "logs": logs})
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "dsctl.engine.docker_keeper", spec],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return identify(process.pid)


class Follower:
    """Copies one container's output until it has ended and everything is written."""

    def __init__(self, address: str, container: str, path: Path) -> None:
        self._address = address
        self._container = container
        self._log = RotatingLog(path, _LOG_MAX_BYTES, _LOG_KEEP)
        self._since: int | None = None
        self._reached = time.monotonic()

    def run(self) -> None:
        """Follow, again and again while the daemon is away."""
        import docker.errors
        import requests.exceptions
        import urllib3.exceptions

        while time.monotonic() - self._reached < _GIVE_UP_S:
            try:
                if self._follow():
                    return
            except docker.errors.NotFound:
                return
            except (
                docker.errors.DockerException,
                requests.exceptions.RequestException,
                urllib3.exceptions.HTTPError,
                OSError,
            ):
                pass
            time.sleep(_AGAIN_S)

    def _follow(self) -> bool:
        """One connection to the daemon; True when the container has ended."""
        import docker

        client = docker.DockerClient(base_url=self._address, timeout=60)
        try:
            self._copy(client)
            state = client.api.inspect_container(self._container)["State"]
        finally:
            client.close()
        self._reached = time.monotonic()
        if state["Status"] not in ("exited", "dead"):
            return False
        self._log.write(f"dsctl: {ending(state)}\n".encode())
        return True

    def _copy(self, client: DockerClient) -> None:
        stream = client.api.logs(
            self._container, stdout=True, stderr=True, stream=True, follow=True, since=self._since
        )
        try:
            for chunk in stream:
                self._since = int(time.time())
                self._log.write(chunk)
        finally:
            stream.close()


def ending(state: dict[str, Any]) -> str:
    """How a container ended, in the words of `docker inspect`, which diagnose knows."""
    killed = str(bool(state.get("OOMKilled"))).lower()
    return f"the container ended: ExitCode={state.get('ExitCode')} OOMKilled={killed}"


def main() -> None:
    """Follow every container in a thread of its own."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spec = json.loads(sys.argv[1])
    threads = [
        threading.Thread(target=Follower(spec["address"], name, Path(path)).run)
        for name, path in spec["logs"].items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
