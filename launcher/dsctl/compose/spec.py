"""What a deployment in containers consists of, as values: containers, a network, volumes.

One `Deck` is the source of both the Compose file and what `dsctl up` asks of the Docker engine.
Fields that differ between machines (paths, ports, GPUs) are texts, so that a Compose file can hold
variables where `dsctl up` holds values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Mount:
    """A host directory (`bind`) or a named volume at `target`.

    `no_copy`: an empty volume stays as it is, instead of taking over what the image has there.
    """

    kind: Literal["bind", "volume"]
    source: str
    target: str
    read_only: bool = True
    no_copy: bool = False


@dataclass(frozen=True)
class Tmpfs:
    """Memory at `target`; nothing in it can be executed unless `executable`."""

    target: str
    size_bytes: int
    executable: bool = False

    @property
    def options(self) -> str:
        """Mount options as Docker takes them."""
        run = "exec" if self.executable else "noexec"
        return f"rw,{run},nosuid,nodev,mode=1777,size={self.size_bytes}"


@dataclass(frozen=True)
class Port:
    """`host_address:host_port` leads to `container_port`."""

    host_address: str
    host_port: str
    container_port: int


@dataclass(frozen=True)
class Ulimit:
    """Soft and hard limit alike; -1 is unlimited."""

    name: str
    value: int


@dataclass(frozen=True)
class ContainerSpec:
    """One container. `network` None: none at all, loopback only.

    `seccomp` is the path of the system call filter (beside the Compose file, or absolute);
    `entrypoint` empty: the image's own.
    """

    role: Literal["engine", "gateway"]
    image: str
    user: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()
    seccomp: str = ""
    memory_bytes: int = 0
    pids: int = 0
    shm_bytes: int | None = None
    oom_score_adj: int = 0
    ulimits: tuple[Ulimit, ...] = ()
    gpus: tuple[str, ...] = ()
    stop_grace_s: int = 20
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        """The role: never a number, which collectives would take for an address."""
        return self.role


@dataclass(frozen=True)
class Deck:
    """A whole deployment: two containers, one network, the volumes between and behind them.

    `run_volume` carries the socket and goes with the containers, `run_options` are its driver's;
    `cache_volume` holds what compilers made and outlives them, None: they write to memory.
    """

    profile: str
    engine: ContainerSpec
    gateway: ContainerSpec
    network: str
    run_volume: str
    cache_volume: str | None
    run_options: dict[str, str] = field(default_factory=dict)

    @property
    def containers(self) -> tuple[ContainerSpec, ContainerSpec]:
        """The engine first: the gateway mounts what it makes."""
        return self.engine, self.gateway

    @property
    def volumes(self) -> dict[str, dict[str, str]]:
        """The named volumes, and the options of the driver for each."""
        made = {self.run_volume: self.run_options}
        return made | ({self.cache_volume: {}} if self.cache_volume is not None else {})
