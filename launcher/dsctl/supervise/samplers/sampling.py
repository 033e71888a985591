"""All readers of one engine together: `Sampling.sample()` is everything known at that moment.

It never waits: each reader has its own thread (and the GPU's its own process), and what has no
answer is `None` with the reason in `Sample.missing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsctl.model.deployment import ProcessIdentity
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.sample import CgroupSample, CheckpointSample, ContainerEvent, Sample
from dsctl.supervise.logtail import LogTail
from dsctl.supervise.rules.context import STARTING
from dsctl.supervise.samplers.checkpoint import CheckpointReader, shards_of
from dsctl.supervise.samplers.containers import ContainerEvents
from dsctl.supervise.samplers.enginelog import EngineLog
from dsctl.supervise.samplers.gpu import GpuReader
from dsctl.supervise.samplers.kernel import KernelReader
from dsctl.supervise.samplers.memory import find_cgroup, read_cgroup, read_host
from dsctl.supervise.samplers.metrics import MetricsReader
from dsctl.supervise.samplers.proc import CgroupTree, ProcessReader, SessionTree
from dsctl.supervise.samplers.reader import Cost, Reader

#: Seconds between reads while starting, and while it serves; None: not read then.
_PACES: dict[str, tuple[float | None, float | None]] = {
    "processes": (1.0, 5.0),
    "cgroup": (1.0, 5.0),
    "host": (1.0, 5.0),
    "checkpoint": (4.0, None),  # the dearest: it reads the maps of every process
    "gpus": (2.0, 5.0),
    "kernel": (2.0, 5.0),
    "metrics": (None, 5.0),
    "containers": (2.0, 5.0),
    "log": (1.0, 5.0),
}
#: Read of the log at one look; in a flood what matters is that it goes on, not each line.
_LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class Subject:
    """What is watched. `checkpoint`: directories or files the engine reads its weights from;
    `container`: the processes are those of the control group, not of a session."""

    engine: ProcessIdentity
    endpoint: Endpoint
    log: Path
    checkpoint: tuple[Path, ...] = ()
    container: bool = False
    gpus: frozenset[int] | None = None


class Sampling:
    """The readers of one engine. `events`: the container engine's source, where there is one."""

    def __init__(
        self,
        subject: Subject,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        events: Callable[[], list[ContainerEvent]] | None = None,
        gpu: GpuReader | None = None,
    ) -> None:
        self._subject = subject
        self._clock, self._wall = clock, wall
        self._phase: Phase | None = None
        self._gpu = gpu if gpu is not None else GpuReader(only=subject.gpus)
        self._metrics = MetricsReader(subject.endpoint.monitor)
        self._processes = ProcessReader(_tree(subject))
        self._checkpoint: CheckpointReader | None = None
        self._log = EngineLog(LogTail(subject.log, _LOG_BYTES), clock)
        self.kernel = KernelReader(clock)
        reads: dict[str, Callable[[], Any]] = {
            "processes": self._processes,
            "cgroup": self._read_cgroup,
            "host": read_host,
            "gpus": self._gpu,
            "kernel": self.kernel,
            "metrics": self._metrics,
            "log": self._log,
        }
        if subject.checkpoint:
            reads["checkpoint"] = self._read_checkpoint
        if events is not None:
            reads["containers"] = ContainerEvents(events)
        self._readers: dict[str, Reader[Any]] = {
            name: Reader(name, read, every_s=_PACES[name][0], deadline_s=15.0, clock=clock)
            for name, read in reads.items()
        }

    def start(self) -> None:
        """Begin to read."""
        for reader in self._readers.values():
            reader.start()

    def close(self) -> None:
        """Stop; whatever hangs is left behind."""
        for reader in self._readers.values():
            reader.stop()
        self._gpu.close()

    def sample(self, phase: Phase, *, alive: bool = True) -> Sample:
        """Everything known now. The phase decides how often what is read."""
        if phase is not self._phase:
            self._set_pace(phase)
        parts: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, reader in self._readers.items():
            value, why = reader.latest()
            if why:
                missing[name] = why
            parts[name] = value
        return Sample.model_construct(
            t=self._clock(),
            wall_t=self._wall(),
            phase=phase,
            alive=alive,
            http_ok=self._metrics.http_ok,
            processes=parts["processes"],
            cgroup=parts["cgroup"],
            host=parts["host"],
            checkpoint=parts.get("checkpoint"),
            gpus=parts["gpus"],
            xids=parts["kernel"] or (),
            metrics=parts["metrics"],
            log=parts["log"],
            container_events=parts.get("containers") or (),
            missing=missing,
        )

    def costs(self) -> dict[str, Cost]:
        """What each reader has cost so far, by name (the GPU helper's own time is not in it)."""
        return {name: reader.cost for name, reader in self._readers.items()}

    @property
    def helper_pids(self) -> tuple[int, ...]:
        """Helper processes of the readers."""
        pid = self._gpu.helper_pid
        return () if pid is None else (pid,)

    def _set_pace(self, phase: Phase) -> None:
        self._phase = phase
        serving = phase not in STARTING
        for name, reader in self._readers.items():
            every = _PACES[name][1 if serving else 0]
            if name == "metrics" and phase is Phase.WARMING:
                every = _PACES[name][1]
            if name == "checkpoint" and phase not in (Phase.STARTING, Phase.LOADING):
                every = None
            reader.pace(every)

    def _read_cgroup(self) -> CgroupSample:
        return read_cgroup(*find_cgroup(self._subject.engine.pid))

    def _read_checkpoint(self) -> CheckpointSample:
        if self._checkpoint is None:
            self._checkpoint = CheckpointReader(
                shards_of(self._subject.checkpoint),
                pids=lambda: self._processes.pids,
                samples=lambda: self._readers["processes"].latest()[0] or (),
            )
        return self._checkpoint()


def _tree(subject: Subject) -> CgroupTree | SessionTree:
    if subject.container:
        return CgroupTree(find_cgroup(subject.engine.pid)[1])
    return SessionTree(subject.engine)
