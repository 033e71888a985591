"""`dsctl up`: from a profile's name to an engine that has answered rightly. One function a step."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.engine.identity import identify
from dsctl.engine.select import engine_for
from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError, EngineError, InterruptedByUserError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.sample import Action
from dsctl.paths import Paths, make_writable
from dsctl.progress import Progress, line
from dsctl.supervise.announce import say_failed, say_retry
from dsctl.supervise.interrupts import interruptible
from dsctl.supervise.join import STOP_GRACE_S, existing, is_mid_start
from dsctl.supervise.journal import Journal, Watcher, open_events
from dsctl.supervise.past import was_rebooted
from dsctl.supervise.prepare import Prepared, Request, judge, prepare
from dsctl.supervise.presence import end_supervisor, ensure_supervisor, start_supervisor
from dsctl.supervise.rules import Attempt as Failed
from dsctl.supervise.rules import next_step
from dsctl.supervise.shell import Shell
from dsctl.supervise.situation import situation_of, write_situation

if TYPE_CHECKING:
    from dsctl.engine.base import EngineCommand
    from dsctl.engine.containers import Images
    from dsctl.supervise.attempt import Attempt


def bring_up(
    request: Request, paths: Paths, shell: Shell, watcher: Watcher, *, leave_supervisor: bool = True
) -> Deployment:
    """Start what is asked for, or join or adopt what is already starting or up.

    With `leave_supervisor` a supervisor stays behind in the background once it is ready.

    Raises:
        DsctlError: with the exit code that the contract names for what happened.
    """
    state = StateDirectory(make_writable(paths.deployment, "state"))
    asked_at = shell.now()
    joined = Journal(watcher, shell.now)

    starts: list[str] = []

    def waiting(holder: str) -> None:
        starts.extend([holder] if holder else [])
        joined.say(Phase.STARTING, "joined", "another `dsctl` is at work on it; waiting for it")

    with interruptible(), state.change(identify(os.getpid()), wait=True, on_wait=waiting):
        found = existing(state, request, asked_at, joined_a_start=bool(starts))
        if found is not None and not is_mid_start(found):
            joined.say(
                Phase.READY,
                "already-up",
                f"{found.profile} is already up",
                ready=True,
                endpoint=str(found.endpoint),
                model=found.model,
            )
            if leave_supervisor:
                ensure_supervisor(state, found)
            return found
        end_supervisor(state)
        with open_events(state.events_file, fresh=found is None) as events:
            journal = Journal(watcher, shell.now, events)
            try:
                ready = _to_ready(found, Start(request, paths, state, shell, journal))
            except KeyboardInterrupt:
                interrupted = InterruptedByUserError("interrupted; nothing was left running")
                say_failed(journal, interrupted)
                raise interrupted from None
            except DsctlError as error:
                say_failed(journal, error)
                raise
            if leave_supervisor:
                with suppress(OSError):  # the next `status` tries again
                    start_supervisor(state)
            return ready


def _to_ready(found: Deployment | None, start: Start) -> Deployment:
    """Adopt the engine of a start whose `dsctl up` was killed, or start one."""
    if found is not None:
        from dsctl.supervise.adopt import attempt_for

        attempt = attempt_for(found, start.state, start.journal, start.shell)
        if attempt is not None:
            return attempt.adopt(found)
        engine_for(found.engine, start.state).stop(found, grace_s=STOP_GRACE_S)
    return start.run()


@dataclass
class Start:
    """One `dsctl up`: as many attempts as what went wrong and the profile allow."""

    request: Request
    paths: Paths
    state: StateDirectory
    shell: Shell
    journal: Journal
    failures: tuple[Failed, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Deployment:
        """Start, and after a failure do what it calls for, until it is ready or has failed."""
        prepared = prepare(self.request, self.paths)
        judge(prepared, self.journal)
        self._say_reboot(prepared)
        while True:
            try:
                return self._attempt(prepared)
            except EngineError as error:
                prepared = self._after(error, prepared)

    def _after(self, error: EngineError, prepared: Prepared) -> Prepared:
        """What to start next.

        Raises:
            EngineError: nothing: the start has failed.
        """
        self.failures += (Failed(cause=error.cause or "unknown", changes=dict(self.changes)),)
        chosen = frozenset(self.request.overrides)
        advice = next_step(
            self.failures, prepared.profile, remedy=error.remedy or "", chosen=chosen
        )
        if advice.action is Action.STOP:
            if len(self.failures) > 1:
                self.journal.say(Phase.FAILED, "gives-up", advice.why, cause=error.cause)
            raise error
        say_retry(self.journal, error, advice)
        self.shell.wait(advice.wait_s)
        if advice.knob is None:
            return prepared
        self.changes[advice.knob] = advice.value
        changed = replace(self.request, overrides=self.request.overrides | texts(self.changes))
        again = prepare(changed, self.paths)
        judge(again, self.journal)
        return again

    def _attempt(self, prepared: Prepared) -> Deployment:
        _claim(prepared.endpoint)
        command = command_of(prepared, self.paths, self.state, self.journal)
        write_situation(self.state, situation_of(prepared))
        deployment = self._record(prepared, command)
        return self._attempt_of(prepared, deployment).start(deployment, command)

    def _attempt_of(self, prepared: Prepared, deployment: Deployment) -> Attempt:
        from dsctl.supervise.adopt import make_attempt

        return make_attempt(
            deployment, situation_of(prepared), self.state, self.journal, self.shell
        )

    def _record(self, prepared: Prepared, command: EngineCommand) -> Deployment:
        now = self.shell.now()
        return Deployment(
            profile=prepared.profile.id,
            requested=self.request.profile,
            overrides=self.request.overrides,
            ignore=self.request.ignore,
            timeout_s=self.request.timeout_s,
            metrics=self.request.metrics,
            changes=dict(self.changes),
            engine=prepared.engine,
            endpoint=prepared.endpoint,
            model=prepared.profile.model.served_name,
            phase=Phase.STARTING,
            since=now,
            started=now,
            argv=command.argv,
            env=command.env,
            log=str(self.state.log_file),
        )

    def _say_reboot(self, prepared: Prepared) -> None:
        """A host that was rebooted under the last deployment, and what is otherwise since."""
        before = self.state.read()
        verdict = was_rebooted(self.state, before, lambda: prepared.facts)
        if verdict is not None and before is not None:
            self.journal.say(
                Phase.PREFLIGHT,
                "rebooted",
                verdict.summary,
                cause=verdict.cause,
                was=before.phase,
            )


def command_of(
    prepared: Prepared, paths: Paths, state: StateDirectory, journal: Journal
) -> EngineCommand:
    """Make what the engine runs in, then its exact command."""

    def report(progress: Progress) -> None:
        journal.say(
            Phase.STARTING,
            "progress",
            line(progress),
            done=progress.done,
            total=progress.total,
            unit=progress.unit,
            rate_per_s=progress.rate_per_s,
            left_s=progress.left_s,
        )

    if prepared.engine == "docker":
        return _containers_of(prepared, paths, journal, report)
    return _process_of(prepared, paths, journal, report)


def _containers_of(
    prepared: Prepared, paths: Paths, journal: Journal, report: Callable[[Progress], None]
) -> EngineCommand:
    from dsctl.engine.containers import ensure_access, ensure_images, named_images

    # what is missing on this machine is said before minutes of building
    _container_command(prepared, named_images(prepared.profile), paths)
    images = ensure_images(prepared.profile, report)
    journal.say(Phase.STARTING, "environment", f"engine image {images.engine}")
    key, new = ensure_access(prepared.profile, paths)
    if new:
        journal.say(Phase.STARTING, "key", f"made API key {key.name!r} in {paths.api_keys}")
    return _container_command(prepared, images, paths)


def _container_command(prepared: Prepared, images: Images, paths: Paths) -> EngineCommand:
    from dsctl.engine.containers import container_command

    return container_command(
        prepared.profile,
        endpoint=prepared.endpoint,
        checkpoint=prepared.checkpoint,
        facts=prepared.facts,
        images=images,
        paths=paths,
    )


def _process_of(
    prepared: Prepared, paths: Paths, journal: Journal, report: Callable[[Progress], None]
) -> EngineCommand:
    from dsctl.engine.environment import ensure_environment
    from dsctl.engine.lockfile import read_lock
    from dsctl.engine.runtime import ensure_runtime
    from dsctl.engine.surroundings import process_command
    from dsctl.planning.cards import visible

    environment = ensure_environment(read_lock(prepared.profile.engine.environment), paths, report)
    runtime = ensure_runtime(environment, paths) if prepared.profile.engine.runtime else None
    journal.say(Phase.STARTING, "environment", f"engine environment {environment.directory}")
    return process_command(
        prepared.profile,
        endpoint=prepared.endpoint,
        checkpoint=prepared.checkpoint,
        environment=environment,
        runtime=runtime,
        paths=paths,
        gpus=visible(prepared.profile.hardware, prepared.facts.gpus),
    )


def _claim(endpoint: Endpoint) -> None:
    """Prove that the endpoint is free by binding it for a moment.

    Raises:
        NotGoodError: something listens there.
    """
    if endpoint.uds is not None:
        Path(endpoint.uds).unlink(missing_ok=True)
        return
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((endpoint.host, endpoint.port))
        except OSError as error:
            raise NotGoodError(
                f"net.port: {endpoint.host}:{endpoint.port} cannot be bound: {error.strerror}",
                remedy="choose another port with `--set port=N`, or stop what listens there "
                f"(`ss -ltnp 'sport = :{endpoint.port}'`)",
            ) from None


def texts(changes: dict[str, Any]) -> dict[str, str]:
    """Changed knobs as `--set` takes them."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in changes.items()}
