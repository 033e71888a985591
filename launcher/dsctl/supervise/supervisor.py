"""The supervisor that stays: adopts what the record names and watches it until it is down."""

from __future__ import annotations

import os
from collections.abc import Callable

from dsctl.engine.identity import identify
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError, InterruptedByUserError
from dsctl.files import LockBusyError
from dsctl.model.deployment import Deployment
from dsctl.paths import Paths
from dsctl.supervise.adopt import attempt_for
from dsctl.supervise.announce import say_failed
from dsctl.supervise.attempt import Attempt
from dsctl.supervise.gauges import Gauges, serving
from dsctl.supervise.interrupts import interruptible
from dsctl.supervise.join import is_mid_start
from dsctl.supervise.journal import Journal, Watcher, open_events
from dsctl.supervise.observer import Observer
from dsctl.supervise.presence import being_the_supervisor
from dsctl.supervise.running import Running
from dsctl.supervise.shell import Shell

Tick = Callable[[Deployment, Observer | None], None]


def supervise(
    paths: Paths, shell: Shell, watcher: Watcher, tick: Tick = lambda deployment, observer: None
) -> None:
    """Be the supervisor until there is nothing to supervise. Ending it never ends the engine.

    Raises:
        DsctlError: the deployment has been given up, or this process was told to end while a
            start was its own.
    """
    state = StateDirectory(paths.deployment)
    with interruptible(), being_the_supervisor(state) as mine:
        if not mine:
            return
        asked = state.read()
        gauges = Gauges()

        def both(deployment: Deployment, observer: Observer | None) -> None:
            gauges.tick(deployment, observer)
            tick(deployment, observer)

        with (
            open_events(state.events_file, fresh=False) as events,
            serving(gauges, asked.metrics if asked is not None else None),
        ):
            journal = Journal(watcher, shell.now, events)
            while (deployment := state.read()) is not None and deployment.is_up:
                attempt = attempt_for(deployment, state, journal, shell)
                if attempt is None:
                    return
                if not _supervised(deployment, attempt, state, journal, shell, both):
                    return


def _supervised(
    deployment: Deployment,
    attempt: Attempt,
    state: StateDirectory,
    journal: Journal,
    shell: Shell,
    tick: Tick,
) -> bool:
    """Watch this deployment; False where somebody else is at work on it."""
    if is_mid_start(deployment):
        adopted = _adopt(deployment, attempt, state, journal)
        if adopted is None:
            return False
        deployment = adopted
    else:
        journal.say(deployment.phase, "adopted", f"watches {deployment.profile}", pid=os.getpid())

    Running(state, journal, shell, attempt, tick).until_down(deployment)
    return True


def _adopt(
    deployment: Deployment, attempt: Attempt, state: StateDirectory, journal: Journal
) -> Deployment | None:
    """Bring a start that has lost its `dsctl up` to its end."""
    try:
        with state.change(identify(os.getpid()), wait=False):
            current = state.read()
            if (
                current is None
                or not is_mid_start(current)
                or current.started != deployment.started
            ):
                return None
            try:
                return attempt.adopt(current)
            except DsctlError as error:
                if not isinstance(error, InterruptedByUserError):
                    say_failed(journal, error)
                raise
    except LockBusyError:
        return None
