"""One engine, watched to its first right answer; what has failed is captured, then taken down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dsctl.engine.base import Engine, EngineCommand
from dsctl.engine.identity import age_s
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError, EngineError, InterruptedByUserError
from dsctl.model.deployment import Deployment
from dsctl.model.diagnosis import Diagnosis
from dsctl.model.event import Phase
from dsctl.supervise.evidence import capture, keep, last_error, tail_lines
from dsctl.supervise.interrupts import uninterrupted
from dsctl.supervise.join import STOP_GRACE_S
from dsctl.supervise.journal import Journal
from dsctl.supervise.past import remember
from dsctl.supervise.shell import Shell
from dsctl.supervise.situation import Situation
from dsctl.supervise.watch import EngineEndedError, Watch

#: A cause for an engine that a signal ended without anybody saying why.
KILLED = "engine.worker-died"


@dataclass
class Attempt:
    """Starts, adopts and ends engines of one situation."""

    engine: Engine
    state: StateDirectory
    journal: Journal
    shell: Shell
    situation: Situation
    watch_for: Callable[[Deployment, float], Watch]

    def start(self, deployment: Deployment, command: EngineCommand) -> Deployment:
        """Start the engine and watch it to ready.

        Raises:
            EngineError, TimedOutError, InterruptedByUserError: it has been taken down again.
        """
        for kept in (self.state.log_file, self.state.samples_file):
            for old in self.state.directory.glob(f"{kept.name}*"):
                old.unlink()
        self.state.write(deployment)  # before there is anything to lose; it proves there is room
        self.journal.say(Phase.STARTING, "start", "starts the engine", argv=list(command.argv))
        return self._guarded(deployment, command)

    def adopt(self, deployment: Deployment) -> Deployment:
        """Watch an engine that somebody else started to ready. Raises as `start`."""
        deployment = self.engine.recorded(deployment)
        self.state.write(deployment)
        age = age_s(deployment.engine_process) if deployment.engine_process else 0.0
        self.journal.say(
            deployment.phase,
            "adopted",
            f"goes on watching the engine that was started {age:.0f} s ago",
            age_s=age,
        )
        return self._guarded(deployment, None)

    def _guarded(self, deployment: Deployment, command: EngineCommand | None) -> Deployment:
        current = deployment
        try:
            if command is not None:
                current = self.engine.start(current, command)
                self.state.write(current)
            return self._watch(current)
        except KeyboardInterrupt:
            self.take_down(self._latest(current), Phase.STOPPED)
            raise InterruptedByUserError("interrupted; the engine has been taken down") from None
        except EngineEndedError as ended:
            raise self.bury(
                self._latest(current), f"the engine ended while {ended.phase}"
            ) from None
        except BaseException as error:  # whatever it was, no engine is left without a watcher
            self._capture_and_take_down(self._latest(current), error)
            raise

    def _latest(self, deployment: Deployment) -> Deployment:
        """The deployment in the phase that its watch has brought it to."""
        with suppress(DsctlError):
            written = self.state.read()
            if written is not None and written.started == deployment.started:
                return written
        return deployment

    def _watch(self, deployment: Deployment) -> Deployment:
        process = deployment.engine_process
        watch = self.watch_for(deployment, age_s(process) if process else 0.0)
        try:
            ready = watch.until_ready(deployment)
        finally:
            if watch.observer is not None:
                watch.observer.close()
        remember(self.state, ready, self.situation, watch, self.shell.now())
        return ready

    def bury(self, deployment: Deployment, what: str) -> EngineError:
        """Capture the evidence of an engine that has ended and clear away what it left: the error
        that says why, for whoever decides what comes next."""
        with uninterrupted(raise_after=True):
            captured, diagnosis = capture(
                self.engine, self.state, deployment, what, self.shell.now()
            )
            error = explain(captured.ended, what, diagnosis, self.engine, deployment)
            keep(self.state, captured)
            self.take_down(deployment, Phase.FAILED, error.cause, error.message)
        return error

    def _capture_and_take_down(self, deployment: Deployment, error: BaseException) -> None:
        with uninterrupted(raise_after=True):
            message = error.message if isinstance(error, DsctlError) else repr(error)
            captured, _ = capture(self.engine, self.state, deployment, message, self.shell.now())
            keep(self.state, captured)
            self.take_down(deployment, Phase.FAILED, getattr(error, "cause", None), message)

    def take_down(
        self,
        deployment: Deployment,
        phase: Phase,
        cause: str | None = None,
        reason: str | None = None,
    ) -> None:
        """End the engine, whatever is left of it, and write down how it stands."""
        with uninterrupted():
            self.engine.stop(deployment, grace_s=STOP_GRACE_S)
            update = {
                "phase": phase,
                "since": self.shell.now(),
                "last_cause": cause,
                "reason": reason,
            }
            with suppress(DsctlError):  # a full disk must not hide why it failed
                self.state.write(deployment.model_copy(update=update))


def explain(
    ended: str | None, what: str, diagnosis: Diagnosis, engine: Engine, deployment: Deployment
) -> EngineError:
    """The end of an engine as an error: by its diagnosis, else by its own last words."""
    told = f"{what} ({ended or 'no exit code known'})"
    if diagnosis.is_known:
        cause = diagnosis.cause
        return EngineError(f"{told}: {cause.title}", remedy=cause.remedy, cause=cause.id)
    log = engine.log_path(deployment)
    said = last_error(tail_lines(log))
    killed = ended is not None and "signal" in ended and said is None
    return EngineError(
        f"{told}: {said}" if said else told,
        remedy=f"see the whole log: {log} (`dsctl logs`)",
        cause=KILLED if killed else "unknown",
    )
