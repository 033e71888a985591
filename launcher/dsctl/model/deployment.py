"""The deployment: what `dsctl up` started, as it is kept on disk and shown by `dsctl status`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dsctl.model.base import Value
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase

#: Version of the state file; an older dsctl refuses a newer file rather than misread it.
STATE_VERSION = 2


class ProcessIdentity(Value):
    """Which process is ours: `start_ticks` clock ticks after boot `boot_id` process `pid` began.

    Pids are reused; dsctl never signals a process whose start is not the recorded one.
    """

    pid: int
    start_ticks: int
    boot_id: str


class Deployment(Value):
    """State of the one deployment of this user. Times are Unix seconds.

    `requested`, `overrides`, `ignore`, `timeout_s` and `metrics` are what `dsctl up` was given, so
    that `restart` can do the same again from anywhere. `changes` are the knobs that a retry has set
    (why: in the events), `boot_id` the boot it was started in, `reason` what the last failure was
    in words, `restart_at` when the supervisor starts it again. `container` is the id of the
    engine's container, `gateway_process` the first process of the other one.
    """

    version: int = STATE_VERSION
    profile: str
    requested: str = ""
    overrides: dict[str, str] = Field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    timeout_s: float | None = None
    metrics: str | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    engine: str
    endpoint: Endpoint
    model: str
    phase: Phase
    since: float
    started: float
    engine_process: ProcessIdentity | None = None
    keeper_process: ProcessIdentity | None = None
    gateway_process: ProcessIdentity | None = None
    container: str | None = None
    restarts: int = 0
    restart_at: float | None = None
    last_cause: str | None = None
    reason: str | None = None
    argv: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    log: str = ""

    @property
    def is_up(self) -> bool:
        """Started and not (yet) ended, as far as the record goes."""
        return self.phase not in (Phase.STOPPED, Phase.FAILED)


class DeploymentStatus(Value):
    """What `dsctl status --format json` prints (contract).

    `supervisor`: pid of the process that watches it, None where nobody does; `reason`: the last
    failure in words; `restart_at`: Unix time of the restart that is due.
    """

    profile: str | None
    engine: str | None
    pid: int | None
    phase: Phase
    since: float | None
    ready: bool
    endpoint: str | None
    model: str | None
    restarts: int
    memory: dict[str, int]
    last_cause: str | None
    reason: str | None = None
    supervisor: int | None = None
    restart_at: float | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
