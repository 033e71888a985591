"""Watches one start: from the engine's first log line to the first right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dsctl.engine.base import Engine
from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError, TimedOutError
from dsctl.model.deployment import Deployment
from dsctl.model.event import Phase
from dsctl.progress import human_seconds
from dsctl.supervise.journal import Journal
from dsctl.supervise.logtail import LogTail
from dsctl.supervise.observer import Observer
from dsctl.supervise.phases import advance, read_line
from dsctl.supervise.readiness import NotYet, Readiness, Wrong

_POLL_S = 0.1
_PROBE_EVERY_S = 1.0
#: An engine whose log says nothing is asked as well, only not as often.
_EARLY_PROBE_EVERY_S = 10.0
_MOST_BEHIND = 8 << 20


class EngineEndedError(Exception):
    """The engine's first process is gone; what for is to be found out from the evidence."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase)
        self.phase = phase


@dataclass
class Watch:
    """State of one watched start. `clock` counts seconds; `wait` sleeps; both are injected.

    `engine_age_s`: how long the engine had been running when the watch began (an adopted one).
    """

    engine: Engine
    state: StateDirectory
    journal: Journal
    readiness: Readiness
    clock: Callable[[], float]
    wait: Callable[[float], None]
    deadline: float
    observer: Observer | None = None
    engine_age_s: float = 0.0
    took_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    load_bytes: int | None = None
    _phase_began: float = 0.0
    _http_up: bool = False
    _skipped: bool = False
    _next_probe: float = 0.0

    def until_ready(self, deployment: Deployment) -> Deployment:
        """Watch until the engine has answered rightly.

        Raises:
            EngineEndedError: the engine ended.
            EngineError: it answered wrongly, or what is seen says to give up.
            TimedOutError: the deadline passed.
        """
        tail = LogTail(
            self.engine.log_path(deployment), max_bytes=1 << 20, most_behind=_MOST_BEHIND
        )
        began = self.clock() - self.engine_age_s
        self._phase_began = began
        self._next_probe = self.clock() + (_EARLY_PROBE_EVERY_S if self.engine_age_s < 5 else 0.0)
        try:
            while True:
                alive = self.engine.is_alive(deployment)
                deployment = self._read(deployment, tail.poll() if alive else tail.drain())
                if not alive:
                    raise EngineEndedError(deployment.phase)
                if self.observer is not None:
                    self.observer.tell(deployment.phase)
                if tail.skipped_bytes and not self._skipped:
                    self._skipped = True
                    self.journal.say(
                        deployment.phase,
                        "log-flood",
                        "the log grows faster than it can be read; goes by its newest lines",
                    )
                if self._should_probe(deployment):
                    answer = self._probe()
                    if answer is not None:
                        return self._ready(deployment, began, answer)
                if self.clock() >= self.deadline:
                    raise TimedOutError(
                        f"not ready after {human_seconds(self.clock() - began)} (phase "
                        f"{deployment.phase}); the engine has been taken down",
                        remedy="see `dsctl logs`; allow more time with `--timeout SECONDS`",
                    )
                self.wait(_POLL_S)
        finally:
            tail.close()

    def _read(self, deployment: Deployment, lines: list[str]) -> Deployment:
        for text in lines:
            sign = read_line(text)
            if sign is None:
                continue
            phase = advance(deployment.phase, sign)
            if phase is not deployment.phase:
                deployment = self._enter(deployment, phase)
            self.journal.say(deployment.phase, sign.event, sign.message)
            self._http_up = self._http_up or sign.event == "http-up"
        return deployment

    def _enter(self, deployment: Deployment, phase: Phase) -> Deployment:
        now = self.clock()
        self.phases_s[deployment.phase] = now - self._phase_began
        self._phase_began = now
        if self.observer is not None and deployment.phase is Phase.LOADING:
            self.load_bytes = self.observer.bytes_read
        update = {"phase": phase, "since": self.journal.clock()}
        deployment = deployment.model_copy(update=update)
        self.state.write(deployment)
        return deployment

    def _should_probe(self, deployment: Deployment) -> bool:
        """At once when the log says that HTTP is up; now and then in case the log does not say."""
        if self._http_up:
            return True
        if self.clock() < self._next_probe:
            return False
        early = deployment.phase in (Phase.STARTING, Phase.LOADING) and not self._skipped
        self._next_probe = self.clock() + (_EARLY_PROBE_EVERY_S if early else _PROBE_EVERY_S)
        return True

    def _probe(self) -> dict[str, float] | None:
        outcome = self.readiness.check(self.journal)
        if isinstance(outcome, NotYet):
            return None
        if isinstance(outcome, Wrong):
            raise EngineError(outcome.summary, remedy=outcome.remedy, cause=outcome.cause)
        return outcome.numbers

    def _ready(self, deployment: Deployment, began: float, numbers: dict[str, float]) -> Deployment:
        deployment = self._enter(deployment, Phase.READY)
        took = self.took_s = self.clock() - began
        self.journal.say(
            Phase.READY,
            "ready",
            f"ready after {human_seconds(took)}",
            ready=True,
            start_s=took,
            endpoint=str(deployment.endpoint),
            model=deployment.model,
            **numbers,
        )
        return deployment
