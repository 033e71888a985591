"""Who supervises: finds the supervisor of a deployment, starts one in the background, ends it.

A supervisor holds `supervisor.lock` for as long as it lives and has its identity written in it, so
there is never more than one, and a killed one is seen at once. Ending it never ends the engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dsctl.engine.identity import identify, is_alive, send, wait_gone
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError
from dsctl.files import LockBusyError, exclusive, write_atomically
from dsctl.model.deployment import Deployment, ProcessIdentity

_POLITE_S = 5.0
_POLL_S = 0.1


@contextmanager
def being_the_supervisor(
    state: StateDirectory, patience_s: float = 2 * _POLITE_S
) -> Iterator[bool]:
    """Be the one supervisor. False: there is another, who is not about to go."""
    me = identify(os.getpid()).model_dump_json()
    deadline = time.monotonic() + patience_s
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusive(state.supervisor_lock, holder=me))
                break
            except LockBusyError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(_POLL_S)
        yield True


def supervisor_of(state: StateDirectory) -> ProcessIdentity | None:
    """The living supervisor: the one in the background, or the `dsctl` that is at work."""
    for lock in (state.supervisor_lock, state.lock_file, state.supervisor_started):
        holder = _holder(lock)
        if holder is not None and is_alive(holder):
            return holder
    return None


def start_supervisor(state: StateDirectory) -> None:
    """Leave a supervisor behind in a session of its own: it adopts what the record names."""
    with state.supervisor_log.open("wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dsctl", "supervise"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    with suppress(DsctlError, OSError):  # for those who look before it has taken its lock
        write_atomically(state.supervisor_started, identify(child.pid).model_dump_json())


def ensure_supervisor(state: StateDirectory, deployment: Deployment | None) -> bool:
    """Start a supervisor where a deployment lives and nobody watches it; True if it did."""
    if deployment is None or supervisor_of(state) is not None:
        return False
    start_supervisor(state)
    return True


def end_supervisor(state: StateDirectory) -> None:
    """End the background supervisor, if there is one. The engine runs on.

    Only for whoever holds the right to change the deployment: a supervisor at work holds it itself.
    """
    for lock in (state.supervisor_lock, state.supervisor_started):
        holder = _holder(lock)
        if holder is None or holder.pid == os.getpid():
            continue
        if send(holder, signal.SIGTERM) and not wait_gone(holder, _POLITE_S):
            send(holder, signal.SIGKILL)
            wait_gone(holder, _POLITE_S)


def _holder(lock: Path) -> ProcessIdentity | None:
    try:
        return ProcessIdentity.model_validate_json(lock.read_text())
    except (OSError, ValueError):
        return None
