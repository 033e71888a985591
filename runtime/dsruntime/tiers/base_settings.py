"""What the user asks of the base tier and of the steps that run over it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Gib = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


def parse_layers(given: Any) -> Any:
    """Layer numbers from a text like ``0-2,5``; a number or a list of numbers is taken as it is.

    Raises:
        ValueError: says which part is not a range.
    """
    if isinstance(given, bool) or not isinstance(given, str | int):
        return given
    found: set[int] = set()
    for part in filter(None, str(given).replace(" ", "").split(",")):
        match = _RANGE.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"{part!r} is not a layer or a range of layers; write it like 0-2,5")
        if last >= 10_000:
            raise ValueError(f"layer {last} is beyond any model")
        found.update(range(first, last + 1))
    return frozenset(found)


class BaseSettings(BaseModel):
    """The part of `TierSettings` that is about the base.

    Attributes:
        base_cache_gib: device memory for base rows of each rank with ``w2-cache``, its scratch for
            prompts included. On a CPU a part of memory that plays the device.
        arena_gib: host memory of each rank that keeps rows beside the pack; pinned where there is
            a GPU. 0: none, every miss reads the pack.
        mapped_layers: layers whose base is read in place from the mapped pack, like ``0-2,5``.
        replay: ``strict``: a decode step is repeated until it missed no expert. ``approximate``: a
            step that misses up to ``replay_tolerance`` experts counts, and is marked degraded.
        replay_tolerance: with ``approximate``, (layer, expert) pairs that may be left out.
        replay_rounds: repetitions of one step, at most; then it runs once more without the cache,
            layer by layer.
        fetch_threads: rows read from the pack side by side.
        gate_threshold: a decode step whose least sure token is below it is redone with its experts
            corrected. None: off.
        gate_signal: what the threshold is compared with: the ``max_prob`` of the next token, or
            the ``margin`` of the best over the second best in nats.
        gate_budget: corrections that one redone step may bring in, at most; 0: as many as it uses.
        gate_percent: share of decode steps that may be redone, at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_cache_gib: Gib = 0.0
    arena_gib: Gib = 0.0
    mapped_layers: Annotated[frozenset[int], BeforeValidator(parse_layers)] = frozenset()
    replay: Literal["strict", "approximate"] = "strict"
    replay_tolerance: int = Field(default=1, ge=1)
    replay_rounds: int = Field(default=64, ge=1)
    fetch_threads: int = Field(default=4, ge=1, le=64)
    gate_threshold: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gate_signal: Literal["max_prob", "margin"] = "max_prob"
    gate_budget: int = Field(default=0, ge=0)
    gate_percent: float = Field(default=100.0, gt=0, le=100)

    @property
    def base_cache_bytes(self) -> int:
        return int(self.base_cache_gib * 2**30)

    @property
    def arena_bytes(self) -> int:
        return int(self.arena_gib * 2**30)

    def unfit_base(self, experts: str) -> str:
        """What of the base's settings does not go with this kind of experts; empty if all do."""
        if experts == "w2-cache" and not self.base_cache_gib:
            return "base_cache_gib is missing: w2-cache needs device memory to cache experts in"
        given = [
            name
            for name in ("base_cache_gib", "arena_gib", "replay")
            if experts != "w2-cache"
            and getattr(self, name) != type(self).model_fields[name].default
        ]
        if given:
            return f"{given[0]} has no meaning with experts={experts}; it belongs to w2-cache"
        if self.mapped_layers and experts == "native":
            return "mapped_layers has no meaning with experts=native"
        threshold = self.gate_threshold
        if threshold is not None and self.gate_signal == "max_prob" and threshold > 1:
            return f"gate_threshold: {threshold:g} is above 1, the surest there is"
        return ""
