"""What a suite file holds. Frozen values; unknown keys are errors."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, model_validator

from dsctl.model.base import Regex, Value


class Check(Value):
    """One decidable fact about an answer; exactly one of the keys is given.

    `regex`: found in the answer. `absent`: not found. `exact`: the answer, white space aside.
    `number`: the last number in it, within `tolerance`. `tool_calls`: these calls, in any order.
    `no_tool_call`: none. `json_schema`: the answer is JSON of this schema. `json_value`: it is this
    value. `reasoning_exact`: the hidden reasoning. `reasoning`: it thought (or, false, did not).
    `no_markup`: no markup of tools or thinking leaked into the answer.
    """

    regex: Regex | None = None
    absent: Regex | None = None
    exact: str | None = None
    reasoning_exact: str | None = None
    number: float | None = None
    tolerance: float = 0.0
    tool_calls: tuple[dict[str, Any], ...] | None = None
    no_tool_call: bool | None = None
    json_schema: dict[str, Any] | None = None
    json_value: Any | None = None
    reasoning: bool | None = None
    no_markup: bool | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Check:
        given = self.model_fields_set - {"tolerance"}
        if len(given) != 1:
            raise ValueError("a check has exactly one of its keys")
        return self

    @property
    def kind(self) -> str:
        """The key that is given."""
        return next(iter(self.model_fields_set - {"tolerance"}))


class RubricItem(Value):
    """One required conclusion. With `checks`, a program can look for it (all must hold)."""

    id: str
    text: str
    turn: int | None = None
    checks: tuple[Check, ...] = ()


class Turn(Value):
    """What the user says; the answers before it are carried in the conversation."""

    user: str
    system: str | None = None


class Needle(Value):
    """A fact hidden in long text: `depth` from 0 (start) to 1 (end), text of about `tokens`."""

    text: str
    depth: float = Field(ge=0.0, le=1.0)
    tokens: int = Field(gt=0)
    question: str


class Case(Value):
    """One case: what is asked, what must come back, and what would be fatal."""

    id: str
    title: str
    tests: str = ""
    weight: float = Field(default=1.0, gt=0)
    history: tuple[dict[str, Any], ...] = ()
    turns: tuple[Turn, ...] = ()
    needle: Needle | None = None
    request: dict[str, Any] = Field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    rubric: tuple[RubricItem, ...] = ()
    fatal: str | None = None

    @model_validator(mode="after")
    def _asks_and_judges(self) -> Case:
        if bool(self.turns) == (self.needle is not None):
            raise ValueError(f"case {self.id}: give either turns or a needle")
        if not self.checks and not self.rubric:
            raise ValueError(f"case {self.id}: neither checks nor a rubric")
        for item in self.rubric:
            if item.turn is not None and not 1 <= item.turn <= len(self.turns):
                raise ValueError(f"case {self.id}, rubric {item.id}: there is no turn {item.turn}")
        return self


class Dimension(Value):
    """One of the dimensions a graded answer is scored in, 0 to 100."""

    id: str
    weight: float = Field(gt=0)
    about: str


class Caps(Value):
    """Highest score of a case with a fatal defect, a confirmed hard loop, or exhausted length."""

    fatal: float
    hard_loop: float
    exhaustion: float


class Suite(Value):
    """A frozen set of cases. `digest` names its content: another content is another suite."""

    suite: str
    version: int
    title: str
    about: str
    thinking: Literal["expected", "off", "free"] = "free"
    request: dict[str, Any] = Field(default_factory=dict)
    caps: Caps | None = None
    dimensions: tuple[Dimension, ...] = ()
    cases: tuple[Case, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        ids = [case.id for case in self.cases]
        if len(set(ids)) != len(ids):
            raise ValueError("two cases have the same id")
        if bool(self.dimensions) != (self.caps is not None):
            raise ValueError("a graded suite has both dimensions and caps")
        if not self.dimensions and any(case.rubric for case in self.cases):
            raise ValueError("a rubric needs dimensions to be graded in")
        return self

    @property
    def is_graded(self) -> bool:
        """Whether people or a judge grade it; otherwise programs decide it alone."""
        return bool(self.dimensions)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that is asked and how it is judged, in a canonical form."""
        text = json.dumps(
            self.model_dump(mode="json", exclude_unset=True),
            sort_keys=True,
            ensure_ascii=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """Suite, version and the start of the digest: `reasoning-1@0a1b2c3d4e5f`."""
        return f"{self.suite}-{self.version}@{self.digest[:12]}"

    def case(self, case_id: str) -> Case:
        """The case of that id (KeyError: none)."""
        for case in self.cases:
            if case.id == case_id:
                return case
        raise KeyError(case_id)
