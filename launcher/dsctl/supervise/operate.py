"""The running deployment: its status, taking it down, starting it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGTERM

from dsctl.engine.base import Engine
from dsctl.engine.identity import send
from dsctl.engine.select import engine_for
from dsctl.engine.state import StateDirectory, lock_holder
from dsctl.errors import EngineError, NotGoodError
from dsctl.files import LockBusyError
from dsctl.model.deployment import Deployment, DeploymentStatus, ProcessIdentity
from dsctl.model.event import Phase
from dsctl.paths import Paths
from dsctl.supervise.interrupts import uninterrupted
from dsctl.supervise.join import STOP_GRACE_S
from dsctl.supervise.past import was_rebooted
from dsctl.supervise.presence import end_supervisor, ensure_supervisor, supervisor_of

_BUSY_POLL_S = 0.1


def status(paths: Paths) -> DeploymentStatus:
    """The deployment as it is now: the record held against the living process."""
    state = StateDirectory(paths.deployment)
    deployment = state.read()
    if deployment is None:
        return _nothing()
    engine = engine_for(deployment.engine, state)
    alive = engine.is_alive(deployment)
    phase, cause, reason = _standing(state, deployment, alive)
    if alive and deployment.is_up:
        with suppress(OSError):  # a full disk must not hide how it stands
            ensure_supervisor(state, deployment)
    watching = supervisor_of(state)
    process = deployment.engine_process
    return DeploymentStatus(
        profile=deployment.profile,
        engine=deployment.engine,
        pid=process.pid if process and alive else None,
        phase=phase,
        since=deployment.since,
        ready=alive and phase is Phase.READY,
        endpoint=str(deployment.endpoint),
        model=deployment.model,
        restarts=deployment.restarts,
        memory=engine.memory(deployment) if alive else {},
        last_cause=cause,
        reason=reason,
        supervisor=watching.pid if watching else None,
        restart_at=deployment.restart_at if watching else None,
        changes=deployment.changes,
    )


def _standing(
    state: StateDirectory, deployment: Deployment, alive: bool
) -> tuple[Phase, str | None, str | None]:
    """Phase, cause and reason as they are now: the record knows nothing of what came later."""
    if not alive:
        from dsctl.host.collect import collect

        rebooted = was_rebooted(state, deployment, collect)
        if rebooted is not None:
            return Phase.FAILED, rebooted.cause, rebooted.summary
    if deployment.is_up and not alive and deployment.engine_process is None:
        if supervisor_of(state) is None:
            return Phase.FAILED, "unknown", "its `dsctl up` was killed before the engine ran"
    elif deployment.is_up and not alive:
        cause = deployment.last_cause or "engine.worker-died"
        return Phase.FAILED, cause, "the engine is gone; `dsctl diagnose` reads its log"
    return deployment.phase, deployment.last_cause, deployment.reason


def running(paths: Paths) -> tuple[Deployment, Engine]:
    """The deployment that runs, with its engine.

    Raises:
        NotGoodError: none runs.
    """
    state = StateDirectory(paths.deployment)
    deployment = state.read()
    if deployment is not None:
        engine = engine_for(deployment.engine, state)
        if engine.is_alive(deployment):
            return deployment, engine
    raise NotGoodError(
        "no deployment is running",
        remedy="start one with `dsctl up --profile cpu-canary` (or `--profile auto`)",
    )


def take_down(
    paths: Paths, now: Callable[[], float], wait: Callable[[float], None] = time.sleep
) -> Deployment | None:
    """Stop the deployment, gracefully first; returns what was stopped, None when nothing ran.

    Every `dsctl up` that is at work or waits its turn is told to cancel, which takes down what it
    has started.
    """
    state = StateDirectory(paths.deployment)
    if not state.directory.is_dir():
        return None
    cancelled: set[ProcessIdentity] = set()
    while True:
        try:
            with state.change(None, wait=False):
                stopped = _stop(state, now)
                return stopped or (state.read() if cancelled else None)
        except LockBusyError as busy:
            starting = lock_holder(busy)
            if starting is not None and starting not in cancelled and send(starting, SIGTERM):
                cancelled.add(starting)
            wait(_BUSY_POLL_S)


def _stop(state: StateDirectory, now: Callable[[], float]) -> Deployment | None:
    deployment = state.read()
    if deployment is None:
        return None
    end_supervisor(state)
    engine = engine_for(deployment.engine, state)
    was_alive = engine.is_alive(deployment)
    with uninterrupted():
        engine.stop(deployment, grace_s=STOP_GRACE_S)
        if was_alive or deployment.is_up or deployment.restart_at is not None:
            update = {"phase": Phase.STOPPED, "since": now(), "restart_at": None}
            state.write(deployment.model_copy(update=update))
    if engine.is_alive(deployment):
        raise EngineError(
            "the engine is still there after SIGKILL (a process in an uninterruptible wait)",
            remedy="see `ps -o pid,stat,wchan -p PID`; a wedged driver needs a reboot",
        )
    return deployment if was_alive or deployment.restart_at is not None else None


def _nothing() -> DeploymentStatus:
    return DeploymentStatus(
        profile=None,
        engine=None,
        pid=None,
        phase=Phase.STOPPED,
        since=None,
        ready=False,
        endpoint=None,
        model=None,
        restarts=0,
        memory={},
        last_cause=None,
    )
