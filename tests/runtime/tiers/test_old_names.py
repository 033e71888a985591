"""`VLLM_MOE_W2_*`: taken where it means something of ours, and told where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsruntime.tiers.compat import (
    NO_MEANING,
    PREFIX,
    READ_WITH_OTHERS,
    TAKEN,
    Translated,
    translate,
)
from dsruntime.tiers.settings import TierSettings, read_settings, with_environment


def said(given: dict[str, Any] | None = None, **environ: str) -> Translated:
    return translate(
        {f"{PREFIX}{name}": text for name, text in ({"": "1"} | environ).items()}, given or {}
    )


RESIDENT = {"experts": "w2-resident", "pool_gib": 2.0}
CACHED = {"experts": "w2-cache", "pool_gib": 2.0}


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, RESIDENT),
        ({"_DELTA_GB": "5.5", "_DELTA_PROMOTE": "16"},
         RESIDENT | {"pool_gib": 5.5, "pool_per_step": 16}),
        ({"_DELTA_GB": "auto", "_DELTA_RESERVE_GB": "3"},
         RESIDENT | {"pool_gib": "auto", "pool_reserve_gib": 3.0}),
        ({"_DELTA_GB": "-1"}, RESIDENT | {"pool_gib": "auto"}),
        ({"_DELTA": "0", "_DELTA_GB": "5"}, RESIDENT | {"pool_gib": 0.0}),
        ({"_DELTA_POLICY": "freq"}, RESIDENT | {"pool_policy": "frequency"}),
        ({"_PREFILL_FP4": "ensure", "_PREFILL_T": "16"},
         RESIDENT | {"prefill_policy": "ensure", "prefill_tokens": 16}),
        ({"_POOL_HEAT": "0", "_POOL_HEAT_DIR": "/h"},
         RESIDENT | {"heat": False, "heat_dir": "/h"}),
        ({"_BASE_CACHE_GB": "14", "_REPLAY_MODE": "approximate", "_BASE_RAM_GB": "20"},
         CACHED | {"base_cache_gib": 14.0, "replay": "approximate", "arena_gib": 20.0}),
        ({"_BASE_CACHE_GB": "0"}, RESIDENT),
        ({"_GATE": "1"}, RESIDENT | {"gate_threshold": 0.6}),
        ({"_GATE": "1", "_GATE_SIGNAL": "margin", "_GATE_MAX_PROMOTE": "0"},
         RESIDENT | {"gate_threshold": 1.5, "gate_signal": "margin", "gate_budget": 0}),
        ({"_GATE": "0", "_GATE_TAU": "0.7"}, RESIDENT),
    ],
)  # fmt: skip
def test_what_means_something_is_taken(environ: dict[str, str], settings: dict[str, Any]) -> None:
    found = said(**environ)
    assert found.settings == settings
    assert found.warnings == ()
    read_settings({"dsruntime": {"pack_dir": "/p", **found.settings}})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"_CUBIT_DIR": "/x"}, "VLLM_MOE_W2_CUBIT_DIR has no meaning here: our kernels choose"),
        ({"_STORE_DIR": "/x"}, "`dsctl pack build`"),
        ({"_DELTA_DECAY": ".5"}, "`pool_half_life_steps`"),
        ({"_FORCE_POOL": "1"}, "there is no guard to override"),
        ({"_GATE_DUMP": "x"}, "it is a diagnostic of that runtime"),
        ({"_EXL3_REPO": "x"}, "there is one 2-bit code"),
        ({"_DELTA_GIB": "5"}, "nothing reads it; did you mean VLLM_MOE_W2_DELTA_GB?"),
        ({"_DELTA_GB": "lots"}, "VLLM_MOE_W2_DELTA_GB has no meaning here: 'lots' is not a number"),
        ({"_DELTA_PROMOTE": "1.5"}, "'1.5' is not a whole number"),
        ({"_DELTA_POLICY": "best"}, "'best' is not one of freq, lru, need"),
        ({"_PREFILL_FP4": "0"}, "a prompt is always read with what the pool holds"),
        ({"_GATE": "1", "_GATE_TAU": "x"}, "_GATE_TAU has no meaning here: 'x' is not a number"),
        ({"_GATE": "1", "_DELTA": "0"}, "there is no pool to correct in"),
        ({"_BASE_RAM_GB": "20"}, "arena_gib has no meaning here: there is no base cache"),
        ({"": "0", "_DELTA_GB": "5"}, "VLLM_MOE_W2_DELTA_GB: ignored, as VLLM_MOE_W2 is not 1"),
    ],
)
def test_what_has_no_meaning_is_one_warning(environ: dict[str, str], says: str) -> None:
    (warning,) = said(**environ).warnings
    assert says in warning
    assert "\n" not in warning


def test_what_the_configuration_says_wins_and_is_said_once() -> None:
    found = said({"pool_gib": 1.0, "pool_policy": "lru"}, _DELTA_GB="5", _DELTA_POLICY="lru")
    assert "pool_gib" not in found.settings
    assert found.warnings == ("VLLM_MOE_W2_*: pool_gib is given in additional-config, which wins",)


def test_without_such_variables_nothing_changes() -> None:
    config = {"dsruntime": {"pool_gib": 1}, "other": 2}
    assert with_environment(config, {"HOME": "/root"}) == (config, ())
    assert with_environment(None, {}) == (None, ())


def test_taken_twice_it_is_the_same() -> None:
    environ = {PREFIX: "1", f"{PREFIX}_DELTA_GB": "5"}
    once, _ = with_environment({}, environ)
    assert once["dsruntime"] == {"experts": "w2-resident", "pool_gib": 5.0}
    assert with_environment(once, environ) == (once, ())


def test_every_name_is_in_one_place_and_every_setting_exists() -> None:
    assert not TAKEN.keys() & NO_MEANING.keys()
    assert not READ_WITH_OTHERS & (TAKEN.keys() | NO_MEANING.keys())
    assert {taken.key for taken in TAKEN.values()} <= TierSettings.model_fields.keys()


@given(
    environ=st.dictionaries(
        st.sampled_from(sorted({*TAKEN, *NO_MEANING, *READ_WITH_OTHERS, "_X"})),
        st.sampled_from(["0", "1", "", "auto", "-1", "2.5", "need", "strict", "margin", "x"]),
    )
)
def test_whatever_is_set_is_taken_or_told(environ: dict[str, str]) -> None:
    found = said(**environ)
    text = "\n".join(found.warnings)
    for suffix in environ:
        if suffix in READ_WITH_OTHERS:
            continue
        taken = TAKEN.get(suffix)
        if taken is None or found.settings == {}:
            assert f"{PREFIX}{suffix}" in text
        elif taken.key not in found.settings and f"{PREFIX}{suffix}" not in text:
            # a value that means "nothing of the kind", or one that belongs to the base cache
            assert taken.key in text or environ[suffix] in ("", "0")
