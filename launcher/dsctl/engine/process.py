"""The `process` engine: a plain `vllm serve` under a keeper, in a session of its own."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dsctl.engine import keeper
from dsctl.engine.base import Ended, EngineCommand
from dsctl.engine.identity import (
    identify,
    is_alive,
    parent_of,
    send,
    session_members,
    wait_gone,
)
from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError
from dsctl.files import write_atomically
from dsctl.model.deployment import Deployment, ProcessIdentity
from dsctl.model.event import Phase

_LOG_MAX_BYTES = 64 << 20
_LOG_KEEP = 3
_START_PATIENCE_S = 10.0
_FIRM_S = 5.0


@dataclass(frozen=True)
class ProcessEngine:
    """Runs the engine as processes of this user; its files lie in the state directory."""

    state: StateDirectory

    @property
    def _spec(self) -> Path:
        return self.state.directory / "keeper.json"

    @property
    def _started(self) -> Path:
        return self.state.directory / "engine.started.json"

    @property
    def _ended(self) -> Path:
        return self.state.directory / "engine.ended.json"

    @property
    def _keeper_lock(self) -> Path:
        return self.state.directory / "keeper.lock"

    def start(self, deployment: Deployment, command: EngineCommand) -> Deployment:
        """Start keeper and engine.

        Raises:
            EngineError: the engine's program cannot be run.
        """
        for stale in (self._started, self._ended):
            stale.unlink(missing_ok=True)
        spec = {
            "argv": list(command.argv),
            "env": command.env,
            "cwd": str(self.state.directory),
            "log": str(self.state.log_file),
            "log_max_bytes": _LOG_MAX_BYTES,
            "log_keep": _LOG_KEEP,
            "started": str(self._started),
            "ended": str(self._ended),
        }
        write_atomically(self._spec, json.dumps(spec, indent=2), mode=0o600)
        # Ctrl-C in these few milliseconds waits, so that no engine runs without a record.
        held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            kept_by = self._start_keeper()
            return self._record(deployment, kept_by, self._wait_started(kept_by))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)

    def _start_keeper(self) -> ProcessIdentity:
        # The keeper inherits the lock: it is held for as long as a keeper lives.
        with self._keeper_lock.open("a") as lock:
            self._claim_keeping(lock)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(self._spec)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        return identify(process.pid)

    def _claim_keeping(self, lock: IO[str]) -> None:
        deadline = time.monotonic() + _START_PATIENCE_S
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise EngineError(
                        "the engine of an earlier start is still there",
                        remedy="`dsctl down` ends it; then start again",
                    ) from None
                time.sleep(0.05)

    def recorded(self, deployment: Deployment) -> Deployment:
        """The deployment with engine and keeper, by the keeper's word if nobody recorded them."""
        engine = self._engine_of(deployment)
        if engine is None or deployment.engine_process is not None:
            return deployment
        kept_by = parent_of(engine)
        update = {"engine_process": engine, "keeper_process": kept_by}
        return deployment.model_copy(update=update)

    def is_alive(self, deployment: Deployment) -> bool:
        """Whether the engine's first process runs."""
        engine = self._engine_of(deployment)
        return engine is not None and is_alive(engine)

    def ended(self, deployment: Deployment) -> Ended | None:
        """What the keeper wrote about the end; waits for its word while a keeper lives."""
        if not self.is_alive(deployment):
            deadline = time.monotonic() + _FIRM_S
            while not self._ended.exists() and self._is_kept() and time.monotonic() < deadline:
                time.sleep(0.02)
        try:
            return Ended(**json.loads(self._ended.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def stop(self, deployment: Deployment, *, grace_s: float) -> None:
        """SIGTERM to the first process, then SIGKILL to the whole session; waits for the keeper."""
        engine = self._engine_of(deployment)
        if engine is not None:
            if send(engine, signal.SIGTERM) and not wait_gone(engine, grace_s):
                self._kill_session(engine)
            self._wait_session_gone(engine)
        if deployment.keeper_process is not None:
            wait_gone(deployment.keeper_process, _FIRM_S)

    def memory(self, deployment: Deployment) -> dict[str, int]:
        """Resident, proportional and anonymous bytes of the engine's session."""
        import psutil

        totals = {"rss_bytes": 0, "pss_bytes": 0, "uss_bytes": 0, "processes": 0}
        engine = deployment.engine_process
        if engine is None or not is_alive(engine):
            return {}
        for member in session_members(engine.pid, engine.start_ticks):
            try:
                info = psutil.Process(member.pid).memory_full_info()
            except psutil.Error:
                continue
            totals["rss_bytes"] += info.rss
            totals["pss_bytes"] += info.pss
            totals["uss_bytes"] += info.uss
            totals["processes"] += 1
        return totals

    def log_path(self, deployment: Deployment) -> Path:
        """The engine's log."""
        return Path(deployment.log) if deployment.log else self.state.log_file

    def _engine_of(self, deployment: Deployment) -> ProcessIdentity | None:
        """The recorded engine; where `dsctl up` was killed before it could record it, the
        keeper's word."""
        if deployment.engine_process is not None or deployment.phase is not Phase.STARTING:
            return deployment.engine_process
        deadline = time.monotonic() + _START_PATIENCE_S
        while (started := self._read_started()) is None and self._is_kept():
            if self._ended.exists() or time.monotonic() >= deadline:
                return None
            time.sleep(0.02)
        return started

    def _is_kept(self) -> bool:
        """Whether a keeper lives, recorded or not."""
        try:
            with self._keeper_lock.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _read_started(self) -> ProcessIdentity | None:
        try:
            return ProcessIdentity.model_validate_json(self._started.read_text())
        except (OSError, ValueError):
            return None

    def _record(
        self, deployment: Deployment, kept_by: ProcessIdentity, engine: ProcessIdentity
    ) -> Deployment:
        return deployment.model_copy(
            update={
                "keeper_process": kept_by,
                "engine_process": engine,
                "log": str(self.state.log_file),
            }
        )

    def _wait_started(self, kept_by: ProcessIdentity) -> ProcessIdentity:
        deadline = time.monotonic() + _START_PATIENCE_S
        while time.monotonic() < deadline:
            started = self._read_started()
            if started is not None:
                return started
            if self._ended.exists() or not is_alive(kept_by):
                break
            time.sleep(0.005)
        send(kept_by, signal.SIGKILL)
        raise EngineError(
            "the engine's process could not be started; the end of its log says why",
            remedy=f"see {self.state.log_file}; if the environment is damaged remove it and run "
            "`dsctl up` again",
        )

    def _kill_session(self, engine: ProcessIdentity) -> None:
        for member in session_members(engine.pid, engine.start_ticks):
            send(member, signal.SIGKILL)

    def _wait_session_gone(self, engine: ProcessIdentity) -> None:
        """The keeper ends what the engine left behind; without a keeper we do it."""
        deadline = time.monotonic() + _FIRM_S
        while members := session_members(engine.pid, engine.start_ticks):
            if time.monotonic() >= deadline:
                for member in members:
                    send(member, signal.SIGKILL)
                deadline += _FIRM_S
            time.sleep(0.02)
