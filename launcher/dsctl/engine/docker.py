"""The `docker` engine: two containers, the network and the volumes between them.

Everything carries the label of its deployment, so that nothing is lost where a record is: what is
taken down is what bears the label. The containers do not need us: they outlive every `dsctl`.
"""

from __future__ import annotations

import hashlib
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.compose.policy import MONITOR_PORT
from dsctl.engine.base import Ended, EngineCommand
from dsctl.engine.docker_client import connect, docker_address, told
from dsctl.engine.identity import identify, is_alive, send, wait_gone
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError, EngineError, NotGoodError
from dsctl.files import write_atomically
from dsctl.model.deployment import Deployment, ProcessIdentity

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

    from dsctl.compose.spec import ContainerSpec, Deck

LABEL = "io.dsctl.deployment"
_FIRM_S = 5.0
#: Longest wait for a question about a container: `status` must not hang with a daemon that does.
_QUICK_S = 10


def project_of(state: StateDirectory) -> str:
    """The name under which a deployment's containers go: one for each state directory."""
    return "dsctl-" + hashlib.sha256(str(state.directory.resolve()).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class DockerEngine:
    """Runs the deployment of a state directory in containers."""

    state: StateDirectory

    @property
    def project(self) -> str:
        """Prefix of the names, value of the label."""
        return project_of(self.state)

    def name(self, role: str) -> str:
        """Name of a container."""
        return f"{self.project}-{role}"

    @property
    def gateway_log(self) -> Path:
        """What the gateway says: requests without their content, and its errors."""
        return self.state.directory / "gateway.log"

    @property
    def _deck_file(self) -> Path:
        return self.state.directory / "containers.json"

    def start(self, deployment: Deployment, command: EngineCommand) -> Deployment:
        """Create network, volumes and containers, start them and the reader of their logs.

        A command without a deck (a supervisor's, from the record) starts the last one again.

        Raises:
            EngineError: the Docker engine refused; the reason is in the log as well.
            NotGoodError: it does not answer.
        """
        deck = self._deck(command)
        address = docker_address()
        client = connect(address)
        kept_by = None
        try:
            self._clear(client, grace_s=0)
            self._create(client, deck)
            with told("the engine's container was started"):
                engine = client.containers.get(self.name("engine"))
                engine.start()
            kept_by = self._start_keeper(address)
            with told("the gateway's container was started"):
                client.containers.get(self.name("gateway")).start()
            recorded = self._record(client, deployment)
            return recorded.model_copy(update={"keeper_process": kept_by})
        except BaseException as error:
            if kept_by is not None:  # nobody has its record, so nobody could end it later
                send(kept_by, signal.SIGTERM)
            if isinstance(error, EngineError):
                with suppress(OSError), self.state.log_file.open("a") as log:
                    log.write(f"dsctl: {error.message}\n")
            raise
        finally:
            client.close()

    def _deck(self, command: EngineCommand) -> Deck:
        from pydantic import TypeAdapter, ValidationError

        from dsctl.compose.spec import Deck

        kept = TypeAdapter(Deck)
        if command.deck is not None:
            write_atomically(self._deck_file, kept.dump_json(command.deck).decode(), mode=0o600)
            return command.deck
        try:
            return kept.validate_json(self._deck_file.read_bytes())
        except (OSError, ValidationError) as error:
            raise EngineError(
                f"{self._deck_file} does not say what ran: {str(error).splitlines()[0]}",
                remedy="`dsctl restart` makes the containers anew",
            ) from None

    def recorded(self, deployment: Deployment) -> Deployment:
        """The deployment with its containers' processes, as the Docker engine knows them."""
        if deployment.engine_process is not None:
            return deployment
        try:
            client = connect(timeout_s=_QUICK_S)
            try:
                return self._record(client, deployment)
            finally:
                client.close()
        except DsctlError:
            return deployment

    def is_alive(self, deployment: Deployment) -> bool:
        """Whether both containers run: by their processes, so also while dockerd is away."""
        known = (deployment.engine_process, deployment.gateway_process)
        if all(known):
            return all(is_alive(process) for process in known if process)
        states = self._states()
        return states is not None and all(s.get("Running") for s in states.values())

    def ended(self, deployment: Deployment) -> Ended | None:
        """How the container that is no longer running ended; the engine's first."""
        for role, state in (self._states() or {}).items():
            if state.get("Status") not in ("exited", "dead"):
                continue
            code = int(state.get("ExitCode") or 0)
            note = "out of memory in its container" if state.get("OOMKilled") else ""
            if role == "gateway":
                note = ", ".join(filter(None, ("the gateway", note, self._last_words())))
            number = code - 128 if code > 128 else None
            return Ended(code, number, _unix(state.get("FinishedAt")), note)
        return None

    def inspect(self, deployment: Deployment) -> dict[str, Any] | None:
        """What the Docker engine answers about the engine's container, None where it is gone."""
        try:
            client = connect(timeout_s=_QUICK_S)
            try:
                with told("a container was looked at"):
                    found: dict[str, Any] = client.api.inspect_container(self.name("engine"))
                    return found
            finally:
                client.close()
        except DsctlError:
            return None

    def stop(self, deployment: Deployment, *, grace_s: float) -> None:
        """Stop and remove the containers, their network and the socket's volume; the caches stay.

        Raises:
            NotGoodError: the Docker engine does not answer.
        """
        client = connect()
        try:
            self._clear(client, grace_s=grace_s)
        finally:
            client.close()
        keeper = deployment.keeper_process
        if keeper is not None and not wait_gone(keeper, _FIRM_S):
            send(keeper, signal.SIGKILL)

    def memory(self, deployment: Deployment) -> dict[str, int]:
        """Bytes of the engine's container: resident, page cache, all that counts, the limit."""
        try:
            client = connect(timeout_s=_QUICK_S)
            try:
                with told("memory was asked for"):
                    stats = client.api.stats(self.name("engine"), stream=False, one_shot=True)
            finally:
                client.close()
        except DsctlError:
            return {}
        return memory_of(stats)

    def log_path(self, deployment: Deployment) -> Path:
        """The engine's log, written by the reader of the containers' logs."""
        return Path(deployment.log) if deployment.log else self.state.log_file

    def kept(self) -> list[str]:
        """Names of the volumes that outlive a deployment: the caches.

        Raises:
            NotGoodError: the Docker engine does not answer.
        """
        client = connect()
        try:
            with told("volumes were listed"):
                return sorted(volume.name for volume in client.volumes.list(filters=self._mine))
        finally:
            client.close()

    def purge(self) -> list[str]:
        """Remove those volumes; their names.

        Raises:
            DsctlError: one is in use, or the Docker engine does not answer.
        """
        client = connect()
        try:
            with told("volumes were removed"):
                volumes = client.volumes.list(filters=self._mine)
                for volume in volumes:
                    volume.remove()
                return sorted(volume.name for volume in volumes)
        finally:
            client.close()

    @property
    def _mine(self) -> dict[str, str]:
        return {"label": f"{LABEL}={self.project}"}

    def _create(self, client: DockerClient, deck: Deck) -> None:
        from dsctl.compose.policy import NETWORK_OPTIONS

        labels = {LABEL: self.project}
        with told("network and volumes were made"):
            client.networks.create(
                deck.network, driver="bridge", options=dict(NETWORK_OPTIONS), labels=labels
            )
            for volume, options in deck.volumes.items():
                client.volumes.create(volume, driver="local", driver_opts=options, labels=labels)
        for spec in deck.containers:
            self._create_container(client, spec)

    def _create_container(self, client: DockerClient, spec: ContainerSpec) -> None:
        import docker.errors

        from dsctl.engine.docker_request import create_arguments

        arguments = create_arguments(client.api, spec, self.name(spec.role))
        with told(f"the {spec.role}'s container was made"):
            try:
                client.api.create_container(**arguments)
            except docker.errors.ImageNotFound:
                raise NotGoodError(
                    f"image {spec.image} is not on this machine",
                    remedy="`dsctl image build` makes it",
                ) from None

    def _start_keeper(self, address: str) -> ProcessIdentity:
        from dsctl.engine.docker_keeper import start_keeper

        logs = {
            self.name("engine"): str(self.state.log_file),
            self.name("gateway"): str(self.gateway_log),
        }
        return start_keeper(address, logs)

    def _record(self, client: DockerClient, deployment: Deployment) -> Deployment:
        """Processes and the monitor's port, as the Docker engine chose them."""
        with told("the containers were looked at"):
            engine = client.containers.get(self.name("engine"))
            gateway = client.containers.get(self.name("gateway"))
        ports = gateway.ports.get(f"{MONITOR_PORT}/tcp") or []
        monitor = int(ports[0]["HostPort"]) if ports else None
        return deployment.model_copy(
            update={
                "engine_process": _process(engine),
                "gateway_process": _process(gateway),
                "container": engine.id,
                "endpoint": deployment.endpoint.model_copy(update={"monitor_port": monitor}),
                "log": str(self.state.log_file),
            }
        )

    def _states(self) -> dict[str, dict[str, Any]] | None:
        """State of both containers by role; None where the Docker engine does not answer."""
        import docker.errors

        try:
            client = connect(timeout_s=_QUICK_S)
            try:
                states = {}
                for role in ("engine", "gateway"):
                    with told("a container was looked at"):
                        try:
                            found = client.api.inspect_container(self.name(role))
                        except docker.errors.NotFound:
                            found = {"State": {}}
                        states[role] = found["State"]
                return states
            finally:
                client.close()
        except DsctlError:
            return None

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self.gateway_log.read_text(errors="replace").splitlines()
            return lines[-1][:200] if lines else ""
        return ""

    def _clear(self, client: DockerClient, *, grace_s: float) -> None:
        """Remove what bears the label, but for the caches; the engine's container first."""
        with told("the containers were taken down"):
            containers = client.containers.list(all=True, filters=self._mine)
            for container in sorted(containers, key=lambda c: c.name or ""):
                _remove(container, grace_s)
            for network in client.networks.list(filters=self._mine):
                network.remove()
            for volume in client.volumes.list(filters=self._mine):
                if volume.name.endswith("-run"):
                    volume.remove()


def memory_of(stats: dict[str, Any]) -> dict[str, int]:
    """Bytes from a container's statistics (cgroup v1 and v2 name them differently)."""
    memory = stats.get("memory_stats") or {}
    kinds = memory.get("stats") or {}
    if "usage" not in memory:
        return {}
    found = {
        "rss_bytes": kinds.get("total_rss", kinds.get("anon")),
        "cache_bytes": kinds.get("total_cache", kinds.get("file")),
        "usage_bytes": memory.get("usage"),
        "limit_bytes": memory.get("limit"),
        "processes": (stats.get("pids_stats") or {}).get("current"),
    }
    return {name: int(value) for name, value in found.items() if value is not None}


def _process(container: Container) -> ProcessIdentity | None:
    """The container's first process as this host sees it; None where it does not (a VM)."""
    state = container.attrs["State"]
    pid = int(state.get("Pid") or 0)
    if not state.get("Running") or pid <= 0:
        return None
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        return identify(pid) if (container.id or "?") in groups else None
    except OSError:
        return None


def _remove(container: Container, grace_s: float) -> None:
    import docker.errors

    with suppress(docker.errors.NotFound):
        if grace_s > 0 and container.status == "running":
            container.stop(timeout=round(grace_s))
        container.remove(force=True, v=True)


def _unix(text: str | None) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat((text or "")[:19] + "+00:00").timestamp()
    except ValueError:
        return 0.0
