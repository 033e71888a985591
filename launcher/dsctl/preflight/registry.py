"""What a check is: a small function with an id, and what it needs to be asked at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.model.facts import Facts, Gpu
from dsctl.model.finding import Status
from dsctl.model.profile import Status as ProfileStatus
from dsctl.planning.cards import chosen
from dsctl.preflight.outcome import Outcome, SkipError

if TYPE_CHECKING:
    from dsctl.model.plan import Plan
    from dsctl.model.profile import Profile
    from dsctl.paths import Paths
    from dsctl.progress import Reporter

Run = Callable[["CheckContext"], Outcome]


@dataclass(frozen=True)
class CheckContext:
    """All that checks decide from.

    `files` is the root that checkpoint and pack paths are read under: `/` live, the tree of a
    recorded host, None when only facts of another machine are at hand. `engine` is `process` or
    `docker`.
    """

    facts: Facts
    profile: Profile
    plan: Plan | None = None
    files: Path | None = None
    paths: Paths | None = None
    engine: str = "process"
    deep: bool = False
    progress: Reporter | None = field(default=None, compare=False)

    @property
    def live(self) -> bool:
        """Whether the facts are of this very machine."""
        return self.facts.source == "live" and self.files == Path("/")

    @property
    def ranks(self) -> int:
        """GPUs the profile uses."""
        return self.profile.hardware.gpus

    def value(self, key: str, default: Any = None) -> Any:
        """A knob of the profile."""
        return self.profile.value(key, default)

    def env(self, name: str) -> str | None:
        """An environment variable the profile sets for the engine, as text."""
        knob = self.profile.env.get(name)
        return None if knob is None else str(knob.value)

    @property
    def _is_planned(self) -> bool:
        """The planner knows our engines; of an unsupported one only the profile's word counts."""
        return self.profile.status is not ProfileStatus.UNSUPPORTED

    @property
    def host_peak_bytes(self) -> int:
        """Host memory at the worst moment of a start."""
        planned = self.plan.host.load_peak_bytes if self.plan and self._is_planned else 0
        return planned or self.profile.hardware.host_memory_bytes

    @property
    def host_steady_bytes(self) -> int:
        """Host memory once it serves."""
        planned = self.plan.host.steady_bytes if self.plan and self._is_planned else 0
        return planned or self.profile.hardware.host_memory_bytes

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is pinned, which the kernel cannot take back."""
        if self.plan is not None:
            return self.plan.host.pinned_bytes
        return self.profile.hardware.host_memory_bytes if self.uses_base_cache else 0

    @property
    def uses_base_cache(self) -> bool:
        """Whether experts travel over PCIe while it serves."""
        return self.value("experts") == "w2-cache" or bool(self.value("mapped_layers", 0))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs the driver named.

        Raises:
            SkipError: it named none.
        """
        nvml = self.facts.nvml
        if nvml is None:
            raise SkipError(self.facts.why_absent("nvml"))
        if not nvml.gpus:
            raise SkipError("the driver names no GPU (see gpu.present)")
        return nvml.gpus

    @property
    def used_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the engine would take."""
        return chosen(self.profile.hardware, self.gpus, max(1, self.ranks))


@dataclass(frozen=True)
class Check:
    """A registered check. `needs` names sections of the facts; without one of them it skips."""

    id: str
    run: Run
    needs: tuple[str, ...]
    device: str | None
    min_gpus: int


CHECKS: dict[str, Check] = {}


def check(
    id: str,
    *,
    needs: tuple[str, ...] = (),
    device: str | None = None,
    min_gpus: int = 0,
) -> Callable[[Run], Run]:
    """Registers a check under its id.

    `device` (`cpu`, `cuda`) and `min_gpus` say which profiles it is for.
    """

    def register(run: Run) -> Run:
        assert id not in CHECKS, f"check {id} is registered twice"
        CHECKS[id] = Check(id, run, needs, device, min_gpus)
        return run

    return register


def apply(one: Check, context: CheckContext) -> Outcome:
    """The outcome of one check: skipped where it does not apply or its facts are absent."""
    hardware = context.profile.hardware
    if one.device is not None and hardware.device != one.device:
        return _not_for(f"only for profiles on a {'GPU' if one.device == 'cuda' else 'CPU'}")
    if hardware.gpus < one.min_gpus:
        return _not_for(f"only for profiles with {one.min_gpus} GPUs or more")
    for section in one.needs:
        if getattr(context.facts, section) is None:
            return Outcome(Status.SKIP, "could not look", context.facts.why_absent(section))
    try:
        return one.run(context)
    except SkipError as skipped:
        return Outcome(Status.SKIP, "could not look", str(skipped))


def _not_for(reason: str) -> Outcome:
    return Outcome(Status.SKIP, "does not apply", reason)
