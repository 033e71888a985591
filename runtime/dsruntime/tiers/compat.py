"""The ``VLLM_MOE_W2_*`` names that people have in their scripts, read as our settings.

Those variables belong to another runtime of the same idea. Each is either *taken* (it means one of
our settings), or *has no meaning here*, and then its owner is told why instead of being left to
believe in it. What the additional configuration says itself always wins. Pure: an environment in,
settings and lines out. docs/tiers.md has the table for people.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "VLLM_MOE_W2"


class MeaninglessError(ValueError):
    """This value has no meaning here; says why."""


@dataclass(frozen=True)
class Taken:
    """A variable that means the setting ``key``; ``read`` makes its value, None for no say."""

    key: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class Translated:
    """Settings that the environment asks for, and what must be said about it."""

    settings: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MeaninglessError(f"{text!r} is not a number") from None


def _count(text: str) -> int:
    number = _number(text)
    if not number.is_integer():
        raise MeaninglessError(f"{text!r} is not a whole number")
    return int(number)


def _one_of(**meanings: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        found = meanings.get(f"_{text.strip().lower()}")
        if found is None:
            known = ", ".join(name[1:] for name in meanings)
            raise MeaninglessError(f"{text!r} is not one of {known}")
        return found

    return read


def _pool(text: str) -> float | str:
    return "auto" if text.strip() in ("auto", "-1") else _number(text)


def _prefill(text: str) -> str:
    if text.strip() == "0":
        raise MeaninglessError("a prompt is always read with what the pool holds")
    read: str = _one_of(_1="opportunistic", _ensure="ensure")(text)
    return read


def _arena(text: str) -> float | None:
    if not text.strip():
        return None
    if text.strip() == "auto":
        raise MeaninglessError("the arena has no size of its own here; give one in GiB")
    return _number(text)


def _threshold(environ: Mapping[str, str]) -> float | None:
    """Of the gate: on by ``_GATE=1``, its threshold in another variable, by signal."""
    if environ.get(f"{PREFIX}_GATE", "0").strip() in ("", "0"):
        return None
    margin = environ.get(f"{PREFIX}_GATE_SIGNAL", "max_prob").strip() == "margin"
    return _number(environ.get(f"{PREFIX}_GATE_TAU", "1.5" if margin else "0.60"))


_POLICIES = {"_freq": "frequency", "_lru": "lru", "_need": "need"}

TAKEN: dict[str, Taken] = {
    "_DELTA_GB": Taken("pool_gib", _pool),
    "_DELTA_RESERVE_GB": Taken("pool_reserve_gib", _number),
    "_DELTA_PROMOTE": Taken("pool_per_step", _count),
    "_DELTA_POLICY": Taken("pool_policy", _one_of(**_POLICIES)),
    "_PROMO_HYST": Taken("pool_hysteresis", _number),
    "_PREFILL_FP4": Taken("prefill_policy", _prefill),
    "_PREFILL_T": Taken("prefill_tokens", _count),
    "_POOL_HEAT": Taken("heat", _one_of(_0=False, _1=True)),
    "_POOL_HEAT_DIR": Taken("heat_dir", str),
    "_POOL_HEAT_EVERY_S": Taken("heat_every_s", _number),
    "_BASE_CACHE_GB": Taken("base_cache_gib", lambda text: _number(text) or None),
    "_BASE_RAM_GB": Taken("arena_gib", _arena),
    "_BASE_MISS_TOL": Taken("replay_tolerance", lambda text: _count(text) or None),
    "_REPLAY_MODE": Taken("replay", _one_of(_strict="strict", _approximate="approximate")),
    "_FP_MAX": Taken("replay_rounds", _count),
    "_STORE_THREADS": Taken("fetch_threads", _count),
    "_GATE_SIGNAL": Taken("gate_signal", _one_of(_max_prob="max_prob", _margin="margin")),
    "_GATE_MAX_PROMOTE": Taken("gate_budget", _count),
}
"""By what follows the prefix."""

POOL_GIB = 2.0
"""That runtime's pool where none is named: the one default that is taken over, as without it the
2-bit experts would be served bare."""

_OF_THE_CACHE = frozenset({"arena_gib", "replay", "replay_tolerance", "replay_rounds"})

READ_WITH_OTHERS = frozenset({"", "_DELTA", "_GATE", "_GATE_TAU"})
"""Switches that decide about other variables."""

_OWN_PACKS = "packs are built by `dsctl pack build` and named by `pack_dir`"
_KERNELS = "our kernels choose by shape"
_CLAMP = "the clamp is always applied, exactly"
_LOADED = "experts are streamed from the pack or the checkpoint; nothing is staged"
_FILES = "settings are fixed while the engine runs"
_CHECKS = "sizes are checked against what is free; there is no guard to override"
_FIGURES = "figures are on /metrics"
_SPEC = "drafts are not a matter of the tiers"

NO_MEANING: dict[str, str] = {
    "_CUBIT_DIR": _KERNELS,
    "_KS": _KERNELS,
    "_AFRAG": _KERNELS,
    "_FUSED_UNPERMUTE": _KERNELS,
    "_A32_G1": _KERNELS,
    "_A32_G2": _KERNELS,
    "_A32_UE8M0": _KERNELS,
    "_SWIGLU_CLAMP": _CLAMP,
    "_SWIGLU_CLAMP_FP32": _CLAMP,
    "_TOPP": "experts are never left out by weight",
    "_TOPP_MIN": "experts are never left out by weight",
    "_TOPP_RENORM": "experts are never left out by weight",
    "_NUM_LAYERS": "the pack says which layers it has",
    "_DRAFT": "the pack says which layers it has (`dsctl pack build --draft`)",
    "_ZERO_MODE": "one-signed zeros are always balanced",
    "_STREAM_BUILD": _LOADED,
    "_CKPT_ID": "a checkpoint is known by its content",
    "_STORE_DIR": _OWN_PACKS,
    "_PLANES_CACHE": _OWN_PACKS,
    "_TIER_DIRECT": _OWN_PACKS,
    "_BASE_NVME_RATIO": _OWN_PACKS,
    "_TIER_SCAN": "prompts never push the decode set out of the arena",
    "_TIER_PREHEAT": "`heat` warms the pool",
    "_POOL_HEAT_FILL": "every slot is filled",
    "_DELTA_MAX_GB": "`pool_gib` has a size or is auto",
    "_DELTA_DECAY": "heat fades by steps, not by seconds: `pool_half_life_steps`",
    "_DELTA_DECAY_S": "heat fades by steps, not by seconds: `pool_half_life_steps`",
    "_DELTA_TICK_MS": "moves are decided after each step",
    "_DELTA_RANK": "a redone step corrects the experts it used most",
    "_DELTA_SPLIT": "the pack's coding decides (`dsctl pack build --correction split|plain`)",
    "_DELTA_TRACE": _FIGURES,
    "_DELTA_TRACE_EVERY": _FIGURES,
    "_DELTA_DUMP": _FIGURES,
    "_DELTA_CAPTURE": _FIGURES,
    "_DELTA_CAPTURE_TICKS": _FIGURES,
    "_KPI_EVERY": _FIGURES,
    "_FORCE_POOL": _CHECKS,
    "_FORCE_RESIDENT": _CHECKS,
    "_GATE_TAU_FILE": _FILES,
    "_GATE_MAX_PROMOTE_FILE": _FILES,
    "_BASE_MISS_TOL_FILE": _FILES,
    "_FP_THRESH_FILE": _FILES,
    "_FP_THRESH": "`replay_tolerance` is the only tolerance",
    "_GATE_FP_MAX": "a redone step is redone until nothing more comes in",
    "_GATE_REFORWARD": "a step that is unsure is always redone",
    "_GATE_SPEC_MASK": _SPEC,
    "_GATE_AGG": "the least sure token of a step decides",
    "_SPEC_GUARD": _SPEC,
    "_DENSE_FP8": "dense weights stay as the checkpoint has them",
    "_EXACT_LAYERWISE": "that runtime never read it either; strict replay is exact",
}

_FAMILIES = {
    "_GATE_": "it is a diagnostic of that runtime",
    "_SPEC_GUARD_": _SPEC,
    "_PREFETCH": "experts are fetched when a step asks for them",
    "_LOOKA": "experts are fetched when a step asks for them",
    "_PILOT": "experts are fetched when a step asks for them",
    "_BF12": "dense weights stay as the checkpoint has them",
    "_EXL3_": "there is one 2-bit code",
}
"""By how a name begins, where no entry above has it."""


def translate(environ: Mapping[str, str], given: Mapping[str, Any]) -> Translated:
    """What the variables ask of our settings, beside what is ``given`` for them already."""
    found = {name: text for name, text in sorted(environ.items()) if name.startswith(PREFIX)}
    if not found:
        return Translated()
    if found.get(PREFIX, "0").strip() in ("", "0"):
        names = ", ".join(name for name in found if name != PREFIX)
        if not names:
            return Translated()
        return Translated({}, (f"{names}: ignored, as {PREFIX} is not 1",))
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    for name, text in found.items():
        suffix = name.removeprefix(PREFIX)
        taken = TAKEN.get(suffix)
        if suffix in READ_WITH_OTHERS:
            continue
        if taken is None:
            warnings.append(f"{name} has no meaning here: {_why(suffix)}")
            continue
        try:
            value = taken.read(text)
        except MeaninglessError as error:
            warnings.append(f"{name} has no meaning here: {error}")
            continue
        if value is not None:
            settings[taken.key] = value
    settings = _together(found, settings, given, warnings)
    for key, value in settings.items():
        if given.get(key, value) != value:
            warnings.append(f"{PREFIX}_*: {key} is given in additional-config, which wins")
    return Translated(
        {key: value for key, value in settings.items() if key not in given}, tuple(warnings)
    )


def _together(
    found: Mapping[str, str],
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    warnings: list[str],
) -> dict[str, Any]:
    """The settings with what several variables decide together."""
    cached = bool(settings.get("base_cache_gib"))
    decided = {
        "experts": "w2-cache" if cached else "w2-resident",
        "pool_gib": POOL_GIB,
        **settings,
    }
    if found.get(f"{PREFIX}_DELTA", "1").strip() == "0":
        decided["pool_gib"] = 0.0
    try:
        threshold = _threshold(found)
    except MeaninglessError as error:
        warnings.append(f"{PREFIX}_GATE_TAU has no meaning here: {error}")
        threshold = None
    if threshold is not None and given.get("pool_gib", decided["pool_gib"]) == 0:
        warnings.append(f"{PREFIX}_GATE has no meaning here: there is no pool to correct in")
    elif threshold is not None:
        decided["gate_threshold"] = threshold
    if given.get("experts", decided["experts"]) != "w2-cache":
        for key in decided.keys() & _OF_THE_CACHE:
            del decided[key]
            warnings.append(f"{PREFIX}_*: {key} has no meaning here: there is no base cache")
    return decided


def _why(suffix: str) -> str:
    known = NO_MEANING.get(suffix)
    if known is None:
        starts = (why for start, why in _FAMILIES.items() if suffix.startswith(start))
        known = next(starts, None)
    if known is not None:
        return known
    names = [f"{PREFIX}{name}" for name in (*TAKEN, *NO_MEANING)]
    like = difflib.get_close_matches(f"{PREFIX}{suffix}", names, n=1)
    return f"nothing reads it{f'; did you mean {like[0]}?' if like else ''}"
