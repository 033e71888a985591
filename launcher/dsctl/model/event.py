"""Events of a start, and the phases it goes through (JSON lines of `dsctl up --format json`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Phase(StrEnum):
    """Phases of a deployment (contract)."""

    PREFLIGHT = "preflight"
    PACKING = "packing"
    STARTING = "starting"
    LOADING = "loading"
    ALLOCATING = "allocating"
    COMPILING = "compiling"
    WARMING = "warming"
    READY = "ready"
    STALLED = "stalled"
    FAILED = "failed"
    STOPPED = "stopped"


class Event(BaseModel):
    """One thing that happened, `t` seconds (Unix time).

    Besides the contract's keys an event carries what belongs to it: `message` for people,
    `done`/`total`/`unit`/`rate_per_s`/`left_s` for progress, `ready` on the last one.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    t: float
    phase: Phase
    event: str
    message: str = ""

    def extra(self, key: str) -> Any:
        """The value of an additional key, or None."""
        return (self.__pydantic_extra__ or {}).get(key)
