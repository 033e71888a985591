"""The engine after ready: seen to progress, started again when it dies, given up in the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsctl.engine.base import EngineCommand
from dsctl.engine.identity import identify
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError, EngineError
from dsctl.files import LockBusyError
from dsctl.model.deployment import Deployment
from dsctl.model.event import Phase
from dsctl.model.sample import Action, Advice, Level, Verdict
from dsctl.supervise.adopt import make_attempt, observer_for
from dsctl.supervise.announce import say_failed, say_retry
from dsctl.supervise.attempt import Attempt
from dsctl.supervise.journal import Journal
from dsctl.supervise.observer import Observer
from dsctl.supervise.rules import Attempt as Failed
from dsctl.supervise.rules import next_step, restart_step
from dsctl.supervise.rules.context import limits_of
from dsctl.supervise.shell import Shell
from dsctl.supervise.situation import write_situation

_POLL_S = 0.5
STALLED = "engine.stalled"


@dataclass
class Running:
    """Watches the deployment `attempt` is of until it is taken down, replaced or given up.

    `tick` is called in every round with the record (the watchdog's ping, the gauges).
    """

    state: StateDirectory
    journal: Journal
    shell: Shell
    attempt: Attempt
    tick: Callable[[Deployment, Observer | None], None] = lambda deployment, observer: None
    deaths: tuple[float, ...] = ()
    _observer: Observer | None = field(default=None, repr=False)

    def until_down(self, deployment: Deployment) -> None:
        """Returns when there is nothing left to watch.

        Raises:
            EngineError: it has been given up.
            InterruptedByUserError: this supervisor was told to end.
        """
        known = deployment
        self._observe(known)
        try:
            while True:
                current = self.state.read()
                if not _is_same(known, current):
                    return
                self.tick(known, self._observer)
                if not self.attempt.engine.is_alive(known):
                    known = self._died(known)
                else:
                    known = self._judge(known)
                self.shell.wait(_POLL_S)
        finally:
            self._close()

    def _observe(self, deployment: Deployment) -> None:
        self._close()
        self._observer = observer_for(
            deployment, self.attempt.situation, self.state, self.journal, self.attempt.engine
        )
        if self._observer is not None:
            self._observer.start(deployment.phase)

    def _close(self) -> None:
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def _judge(self, known: Deployment) -> Deployment:
        """Say what is new; a deployment that does not progress is `stalled` until it does."""
        if self._observer is None:
            return known
        self._observer.tell(known.phase)
        stalls = [v for v in self._observer.verdicts if v.cause is not None and _is_stall(v)]
        phase = Phase.STALLED if stalls else Phase.READY
        if phase is not known.phase:
            changed = self._write_if_same(
                known, phase=phase, cause=stalls[0].cause if stalls else None
            )
            if changed is None:
                return known
            known = changed
            what = stalls[0].summary if stalls else "progresses again"
            self.journal.say(phase, "stalled" if stalls else "recovered", what)
        for verdict in stalls:
            if verdict.advice is not None and verdict.advice.action is Action.RESTART:
                return self._again(known, verdict.summary, verdict.cause or STALLED)
        return known

    def _died(self, known: Deployment) -> Deployment:
        return self._again(known, "the engine died while serving", None)

    def _again(self, known: Deployment, what: str, cause: str | None) -> Deployment:
        """Bury the engine and start it again, as often as the budget allows."""
        buried = self._bury(known, what, cause)
        if buried is None:  # somebody else is at work on it, or has been
            return known
        known, error = buried
        self._close()
        self.deaths += (self.shell.clock(),)
        advice = self._after_death(known, error)
        failed: tuple[Failed, ...] = ()
        while True:
            if advice.action is Action.STOP:
                raise self._given_up(known, error, advice)
            say_retry(self.journal, error, advice)
            known = self._schedule(known, advice)
            started = self._start_again(known, advice)
            if isinstance(started, Deployment):
                self._observe(started)
                return started
            if started is None:
                return known
            error = started
            known = self.state.read() or known
            failed += (Failed(cause=error.cause or "unknown", changes=dict(known.changes)),)
            advice = next_step(
                failed,
                self.attempt.situation.profile,
                remedy=error.remedy or "",
                chosen=frozenset(known.overrides),
            )

    def _after_death(self, known: Deployment, error: EngineError) -> Advice:
        profile = self.attempt.situation.profile
        cause, remedy = error.cause or "unknown", error.remedy or ""
        advice = restart_step(self.deaths, cause, limits_of(profile), remedy=remedy)
        if advice.action is Action.RESTART and len(self.deaths) > 1:
            # The same configuration has died before: a change that the profile allows comes first.
            died = Failed(cause=cause, changes=dict(known.changes))
            step = next_step([died], profile, chosen=frozenset(known.overrides))
            if step.action is Action.RETRY_CHANGED:
                return step.model_copy(update={"wait_s": advice.wait_s})
        return advice

    def _bury(
        self, known: Deployment, what: str, cause: str | None
    ) -> tuple[Deployment, EngineError] | None:
        try:
            with self.state.change(identify(os.getpid()), wait=False):
                if not _is_same(known, self.state.read()):
                    return None
                error = self.attempt.bury(known, what)
                if cause is not None:
                    error = EngineError(what, remedy=error.remedy, cause=cause)
                buried = self.state.read() or known
                self.journal.say(
                    Phase.FAILED, "died", error.message, cause=error.cause, remedy=error.remedy
                )
                return buried, error
        except LockBusyError:
            return None

    def _schedule(self, known: Deployment, advice: Advice) -> Deployment:
        """Write down when it starts again, then wait; anybody may take over meanwhile."""
        due = self.shell.now() + advice.wait_s
        scheduled = self._write_if_same(known, restart_at=due)
        until = self.shell.clock() + advice.wait_s
        while self.shell.clock() < until and _is_same(known, self.state.read()):
            self.tick(known, None)
            self.shell.wait(min(_POLL_S, max(0.0, until - self.shell.clock())))
        return scheduled or known

    def _start_again(self, known: Deployment, advice: Advice) -> Deployment | EngineError | None:
        """Start it; the error of a start that failed, None where somebody else took over."""
        try:
            with self.state.change(identify(os.getpid()), wait=False):
                if not _is_same(known, self.state.read()):
                    return None
                try:
                    return self._restarted(known, advice)
                except EngineError as error:
                    return error
        except LockBusyError:
            return None

    def _restarted(self, known: Deployment, advice: Advice) -> Deployment:
        now = self.shell.now()
        update: dict[str, object] = {
            "phase": Phase.STARTING,
            "since": now,
            "started": now,
            "restarts": known.restarts + 1,
            "restart_at": None,
            "engine_process": None,
            "keeper_process": None,
        }
        command = EngineCommand(known.argv, known.env)
        if advice.knob is not None:
            command, changes = self._changed(known, advice)
            update |= {"changes": changes, "argv": command.argv, "env": command.env}
        deployment = known.model_copy(update=update)
        return self.attempt.start(deployment, command)

    def _changed(self, known: Deployment, advice: Advice) -> tuple[EngineCommand, dict[str, Any]]:
        """The command with the change that the profile allows."""
        from dsctl.paths import user_paths
        from dsctl.supervise.prepare import prepare, same_again
        from dsctl.supervise.situation import situation_of
        from dsctl.supervise.start import command_of, texts

        changes = known.changes | {str(advice.knob): advice.value}
        request = same_again(known, texts(changes))
        try:
            paths = user_paths()
            prepared = prepare(request, paths)
            command = command_of(prepared, paths, self.state, self.journal)
        except DsctlError as error:
            raise EngineError(error.message, remedy=error.remedy, cause="unknown") from None
        situation = situation_of(prepared)
        write_situation(self.state, situation)
        self.attempt = make_attempt(known, situation, self.state, self.journal, self.shell)
        return command, changes

    def _given_up(self, known: Deployment, error: EngineError, advice: Advice) -> EngineError:
        reason = f"{error.message}; {advice.why}" if advice.why else error.message
        self._write_if_same(known, reason=reason, restart_at=None)
        given_up = EngineError(reason, remedy=error.remedy, cause=error.cause)
        say_failed(self.journal, given_up)
        return given_up

    def _write_if_same(
        self,
        known: Deployment,
        *,
        phase: Phase | None = None,
        cause: str | None = None,
        restart_at: float | None = None,
        reason: str | None = None,
    ) -> Deployment | None:
        """Change the record, unless somebody else is changing it or has."""
        update: dict[str, object] = {"restart_at": restart_at}
        if phase is not None:
            update |= {"phase": phase, "since": self.shell.now(), "last_cause": cause}
        if reason is not None:
            update["reason"] = reason
        try:
            with self.state.change(None, wait=False):
                if not _is_same(known, self.state.read()):
                    return None
                changed = known.model_copy(update=update)
                self.state.write(changed)
                return changed
        except (LockBusyError, DsctlError):
            return None


def _is_same(known: Deployment, current: Deployment | None) -> bool:
    """Whether the record still is the one that we know: nobody has started or stopped anything."""
    return (
        current is not None
        and current.started == known.started
        and current.phase == known.phase
        and current.since == known.since
    )


def _is_stall(verdict: Verdict) -> bool:
    return verdict.level in (Level.WARN, Level.ACT) and verdict.cause in (
        STALLED,
        "engine.dead-behind-healthy-api",
    )
