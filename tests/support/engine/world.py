"""A start in one process on an injected clock: engine, readiness and eyes are scripted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsctl.engine.base import Ended, EngineCommand
from dsctl.engine.state import StateDirectory
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Event, Phase
from dsctl.model.facts import Facts
from dsctl.model.sample import Sample
from dsctl.planning.catalog import load_profile
from dsctl.supervise.attempt import Attempt
from dsctl.supervise.journal import Journal
from dsctl.supervise.observer import Observer, SampleFile
from dsctl.supervise.readiness import Outcome, Right
from dsctl.supervise.rules.context import Context
from dsctl.supervise.shell import Shell
from dsctl.supervise.situation import Situation
from dsctl.supervise.watch import Watch

CANARY = load_profile("cpu-canary")

LOG = [
    "(APIServer pid=1) INFO [utils.py:1] vLLM API server version 0.32.0",
    "(EngineCore pid=2) INFO [runner.py:1] Starting to load model /m...",
    "(EngineCore pid=2) INFO [runner.py:1] Model loading took 0.02 GiB and 0.3 seconds",
    "(EngineCore pid=2) INFO init engine (profile, create kv cache, warmup model) took 3 s",
    "(APIServer pid=1) INFO:     Application startup complete.",
]


@dataclass
class ScriptedEngine:
    """Writes one log line each tick; ends after `lives` ticks (None: never)."""

    log: Path
    lines: list[str]
    lives: int | None = None
    ticks: int = 0
    stopped: bool = False

    def tick(self) -> None:
        if self.ticks < len(self.lines):
            with self.log.open("a") as file:
                file.write(self.lines[self.ticks] + "\n")
        self.ticks += 1

    def start(self, deployment: Deployment, command: EngineCommand) -> Deployment:
        raise AssertionError("the watch starts nothing")

    def is_alive(self, deployment: Deployment) -> bool:
        return self.lives is None or self.ticks < self.lives

    def ended(self, deployment: Deployment) -> Ended | None:
        return None if self.is_alive(deployment) else Ended(code=1, signal=None, t=0.0)

    def recorded(self, deployment: Deployment) -> Deployment:
        return deployment

    def stop(self, deployment: Deployment, *, grace_s: float) -> None:
        self.stopped = True

    def memory(self, deployment: Deployment) -> dict[str, int]:
        return {}

    def log_path(self, deployment: Deployment) -> Path:
        return self.log


@dataclass
class ScriptedReadiness:
    """Gives these outcomes in turn, the last for ever."""

    outcomes: list[Outcome]
    asked: int = 0

    def check(self, journal: Journal) -> Outcome:
        self.asked += 1
        return self.outcomes[min(self.asked, len(self.outcomes)) - 1]


@dataclass
class World:
    """A watch with everything around it scripted."""

    directory: Path
    lines: list[str] = field(default_factory=lambda: list(LOG))
    outcomes: list[Outcome] = field(default_factory=lambda: [Right({})])
    lives: int | None = None
    timeout_s: float = 60.0
    events: list[Event] = field(default_factory=list)
    eyes: Callable[[float, Phase], Sample] | None = None
    wall_jump: Callable[[float], float] = lambda t: 0.0
    tick_s: float = 1.0

    def run(self) -> Deployment:
        state = self.state = StateDirectory(self.directory)
        self.engine = ScriptedEngine(self.directory / "log", self.lines, self.lives)
        self.readiness = ScriptedReadiness(self.outcomes)
        now = [1000.0]

        def wait(seconds: float) -> None:
            now[0] += self.tick_s
            self.engine.tick()
            if observer is not None:
                observer.look(kept)

        def wall() -> float:
            return now[0] + self.wall_jump(now[0])

        journal = Journal(self.events.append, clock=wall)
        kept = SampleFile(state.samples_file)
        observer = self._observer(now, journal, state) if self.eyes is not None else None

        def watch_for(deployment: Deployment, age_s: float) -> Watch:
            return Watch(
                engine=self.engine,
                state=state,
                journal=journal,
                readiness=self.readiness,  # type: ignore[arg-type]
                clock=lambda: now[0],
                wait=wait,
                deadline=now[0] + self.timeout_s,
                observer=observer,
            )

        shell = Shell(now=wall, clock=lambda: now[0], wait=wait)
        situation = Situation(profile=CANARY, plan=None, facts=Facts())
        attempt = Attempt(self.engine, state, journal, shell, situation, watch_for)
        deployment = Deployment(
            profile="test",
            engine="process",
            endpoint=Endpoint(port=8000),
            model="canary",
            phase=Phase.STARTING,
            since=now[0],
            started=now[0],
        )
        return attempt.adopt(deployment)

    def _observer(self, now: list[float], journal: Journal, state: StateDirectory) -> Observer:
        looks = self.eyes
        assert looks is not None

        class Eyes:
            def start(self) -> None: ...

            def close(self) -> None: ...

            def sample(self, phase: Phase, *, alive: bool) -> Sample:
                return looks(now[0], phase)

        context = Context(phase_began=now[0])
        return Observer(Eyes(), lambda: True, context, journal, state.samples_file)
