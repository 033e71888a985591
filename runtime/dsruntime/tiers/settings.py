"""What the user asks of the tiers: ``--additional-config '{"dsruntime": {...}}'``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from dsruntime.tiers.base_settings import BaseSettings, Gib
from dsruntime.tiers.compat import translate

KEY = "dsruntime"


class SettingsError(ValueError):
    """One line: which key, what is wrong, what to do."""


class TierSettings(BaseSettings):
    """Frozen; unknown keys are errors. Those of the base are `BaseSettings`'.

    Attributes:
        experts: ``native``: the checkpoint's FP4. ``w2-resident``: the 2-bit base of all experts in
            memory, FP4 from the correction pool. ``w2-cache``: the base in the pack, those in use
            in a cache of ``base_cache_gib``.
        pack_dir: a directory that `dsctl pack build` printed. ``w2-resident`` does without one:
            then each start quantizes the checkpoint's experts again, one matrix at a time.
        pool_gib: memory of the correction pool of each rank; ``auto``: all that is free when
            everything else has its memory, less ``pool_reserve_gib``.
        pool_reserve_gib: what ``auto`` leaves free on the machine or card, for all ranks together.
        pool_allocation: ``last``: after weights, KV cache and warm-up. ``first``: before the first
            expert, where no temporary of the start may lie in the pool's place.
        pool_policy: ``frequency`` follows what is used most, ``lru`` what was used last; ``need``
            moves only what a step cannot do without; ``fixed`` leaves the pool as it is loaded.
        pool_per_step: promotions begun after one step, at most.
        pool_hysteresis: by what share a newcomer must be hotter than whom it replaces.
        pool_half_life_steps: in so many steps a use counts half.
        prefill_policy: ``opportunistic``: a prompt is read with what the pool holds. ``ensure``:
            a layer waits until the experts that a prompt's chunk routes to are corrected, as many
            as the pool has room for.
        prefill_tokens: tokens in one step from which on it counts as a prompt.
        heat: remember which experts were hot, and correct them before the next start is ready.
        heat_dir: where; None: the user's cache directory.
        heat_every_s: how often at most, beside the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experts: Literal["native", "w2-resident", "w2-cache"] = "native"
    pack_dir: Path | None = None
    pool_gib: Literal["auto"] | Gib = 0.0
    pool_reserve_gib: Gib = 1.0
    pool_allocation: Literal["first", "last"] = "last"
    pool_policy: Literal["frequency", "lru", "need", "fixed"] = "frequency"
    pool_per_step: int = Field(default=8, ge=0)
    pool_hysteresis: float = Field(default=0.25, ge=0, allow_inf_nan=False)
    pool_half_life_steps: float = Field(default=256.0, gt=0, allow_inf_nan=False)
    prefill_policy: Literal["opportunistic", "ensure"] = "opportunistic"
    prefill_tokens: int = Field(default=16, ge=1)
    heat: bool = True
    heat_dir: Path | None = None
    heat_every_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _needs_pack(self) -> TierSettings:
        if self.pack_dir is None and self.experts == "w2-cache":
            raise ValueError("pack_dir is missing: w2-cache reads its experts from a pack")
        if self.pack_dir is None and self.mapped_layers:
            raise ValueError("pack_dir is missing: mapped layers are read in place from a pack")
        return self

    @model_validator(mode="after")
    def _base_fits(self) -> TierSettings:
        if unfit := self.unfit_base(self.experts):
            raise ValueError(unfit)
        if self.gate_threshold is not None and self.pool_gib == 0:
            raise ValueError(
                "gate_threshold needs a correction pool to correct experts in: set pool_gib"
            )
        return self

    @model_validator(mode="after")
    def _auto_comes_last(self) -> TierSettings:
        if self.pool_gib == "auto" and self.pool_allocation == "first":
            raise ValueError(
                "pool_gib: auto takes what the rest leaves, so it cannot be allocated first; give "
                "a size, or leave pool_allocation out"
            )
        return self

    @property
    def pool_bytes(self) -> int | None:
        """Of each rank; None: what is left."""
        return None if self.pool_gib == "auto" else int(self.pool_gib * 2**30)

    @property
    def pool_reserve_bytes(self) -> int:
        return int(self.pool_reserve_gib * 2**30)


def read_settings(additional_config: Any) -> TierSettings:
    """Our part of vLLM's additional configuration; the defaults where there is none.

    Raises:
        SettingsError: names the key.
    """
    given = additional_config.get(KEY, {}) if isinstance(additional_config, dict) else {}
    try:
        return TierSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        if "literal['auto']" in first["loc"]:  # the other half of "a number or auto" says more
            first = error.errors()[1]
        name = ".".join(map(str, (KEY, *first["loc"][:1])))
        raise SettingsError(f"additional-config: {name}: {_what(first)}") from None


def with_environment(
    additional_config: Any, environ: Mapping[str, str]
) -> tuple[Any, tuple[str, ...]]:
    """The additional configuration with what ``VLLM_MOE_W2_*`` asks for; and what to say of it."""
    given = additional_config.get(KEY, {}) if isinstance(additional_config, dict) else {}
    if not isinstance(given, dict):
        return additional_config, ()
    asked = translate(environ, given)
    if not asked.settings:
        return additional_config, asked.warnings
    whole = additional_config if isinstance(additional_config, dict) else {}
    return {**whole, KEY: {**given, **asked.settings}}, asked.warnings


def _what(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key; known: {', '.join(sorted(TierSettings.model_fields))}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{error['msg'][0].lower()}{error['msg'][1:]}, not {error['input']!r}"
