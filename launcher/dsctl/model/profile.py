"""A profile: one hardware class, the engine to run on it, its knobs, and where each comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from dsctl.model.base import Value

#: Version of the profile files; a file of another version is refused, not guessed at.
PROFILE_SCHEMA = 1


class Source(StrEnum):
    """Where a value comes from."""

    SEED = "seed"  # a user's report of a run on the hardware
    RECIPE = "recipe"  # somebody else's published recipe
    UPSTREAM = "upstream"  # the engine's own code or documentation
    DERIVED = "derived"  # computed from other values; `why` says how
    MEASURED = "measured"  # measured with dsctl
    CHOICE = "choice"  # ours to choose; `why` says why
    USER = "user"  # the user's file or `--set`


class Knob(Value):
    """One setting: its value, where it comes from, and where it matters why."""

    value: Any
    source: Source
    why: str = ""
    ref: str = ""

    @model_validator(mode="after")
    def _a_choice_has_a_reason(self) -> Knob:
        if self.source in (Source.CHOICE, Source.DERIVED) and not self.why:
            raise ValueError(f"a value of source '{self.source}' needs a 'why'")
        return self


class Status(StrEnum):
    """How far dsctl stands behind a profile."""

    SUPPORTED = "supported"
    EXPERIMENTAL = "experimental"
    EXTERNAL = "external"
    UNSUPPORTED = "unsupported"


class Verified(StrEnum):
    """What of a profile has been run, at most: `gpu` means on the hardware it is for."""

    NONE = "none"
    INTERPRETER = "interpreter"
    AOT = "aot"
    CPU = "cpu"
    GPU = "gpu"


class Hardware(Value):
    """What the profile needs of a machine. Memory is per GPU, and available host memory."""

    device: Literal["cpu", "cuda"]
    gpus: int = Field(default=0, ge=0)
    gpu_memory_bytes: int = Field(default=0, ge=0)
    compute_capability: tuple[int, int] | None = None
    host_memory_bytes: int = Field(default=0, ge=0)
    wsl: Literal["allowed", "refused", "required"] = "allowed"
    pinned_memory: bool = False


class EngineSpec(Value):
    """Which engine: its version, the environment (lock) it lives in, whether our plugin is in it.

    `external` engines are other people's images: only `dsctl image vet` lets them run. `program`
    replaces `vllm serve` there, and `unset_env` names variables of the image to be taken away.
    """

    kind: Literal["vllm"] = "vllm"
    version: str
    environment: Literal["cpu", "cuda"]
    runtime: bool = False
    external: bool = False
    image: str | None = None
    program: tuple[str, ...] = ()
    unset_env: tuple[str, ...] = ()


class ModelRef(Value):
    """What is served. `geometry` names shipped facts used when the checkpoint is not there yet."""

    checkpoint: str
    revision: str | None = None
    served_name: str
    also_served_as: tuple[str, ...] = ()
    geometry: str
    questions: str | None = None


class Report(Value):
    """Something somebody measured with a configuration like this one."""

    what: str
    low: float
    high: float
    unit: str
    conditions: str
    source: Source
    ref: str = ""


class Retry(Value):
    """A bounded change that may be tried after a failed start: on one of `causes`, set `knob` to
    the next of `values` (strongest first); when they are used up the start has failed."""

    causes: tuple[str, ...]
    knob: str
    values: tuple[Any, ...] = Field(min_length=1)
    why: str


class Profile(Value):
    """One profile, resolved: what it extends and every override are already applied.

    `verified_how` says what was run for `verified`; `limits` are bounds the supervisor keeps
    (`start_timeout_s`); `prefer` breaks a tie of `--profile auto`, the larger wins.
    """

    schema_version: Literal[1] = Field(alias="schema")
    id: str
    title: str
    summary: str
    extends: str | None = None
    status: Status
    status_reason: str = ""
    evidence: tuple[str, ...] = ()
    verified: Verified
    verified_how: str = ""
    prefer: int = 0
    hardware: Hardware
    engine: EngineSpec
    model: ModelRef
    knobs: dict[str, Knob]
    env: dict[str, Knob] = Field(default_factory=dict)
    limits: dict[str, Knob] = Field(default_factory=dict)
    measured: tuple[Report, ...] = ()
    retry: tuple[Retry, ...] = ()

    @model_validator(mode="after")
    def _bad_news_has_a_reason(self) -> Profile:
        if self.status is not Status.SUPPORTED and not self.status_reason:
            raise ValueError(f"status '{self.status}' needs a 'status_reason'")
        if self.status is Status.UNSUPPORTED and not self.evidence:
            raise ValueError("an unsupported profile needs 'evidence'")
        if self.verified is not Verified.NONE and not self.verified_how:
            raise ValueError(f"verified '{self.verified}' needs 'verified_how': what was run")
        return self

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a knob, or `default` where the profile does not set it."""
        knob = self.knobs.get(key)
        return default if knob is None else knob.value
