"""The additional configuration: unknown keys and senseless values are named."""

from __future__ import annotations

from typing import Any

import pytest

from dsruntime.tiers.settings import SettingsError, read_settings


def test_without_our_key_experts_are_native() -> None:
    assert read_settings({}).experts == "native"
    assert read_settings({"other": {"pool_gib": "x"}}).experts == "native"


def test_a_resident_configuration_is_read() -> None:
    given = {"experts": "w2-resident", "pack_dir": "/packs/a", "pool_gib": 1.5}
    settings = read_settings({"dsruntime": given})
    assert settings.pool_bytes == 3 << 29
    assert str(settings.pack_dir) == "/packs/a"


def test_auto_has_no_size_of_its_own() -> None:
    assert read_settings({"dsruntime": {"pool_gib": "auto"}}).pool_bytes is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pol_gib": 1}, "dsruntime.pol_gib: unknown key; known: "),
        ({"arena_gib": 1}, "arena_gib has no meaning with experts=native"),
        ({"experts": "w2"}, "dsruntime.experts: input should be 'native', 'w2-resident' or"),
        (
            {"experts": "w2-cache", "base_cache_gib": 1},
            "dsruntime: pack_dir is missing: w2-cache reads its experts from a pack",
        ),
        (
            {"experts": "w2-resident", "mapped_layers": "0"},
            "dsruntime: pack_dir is missing: mapped layers are read in place",
        ),
        (
            {"pool_gib": -1},
            "dsruntime.pool_gib: input should be greater than or equal to 0, not -1",
        ),
        ({"pool_gib": float("nan")}, "dsruntime.pool_gib: input should be"),
        ({"pool_gib": "much"}, "dsruntime.pool_gib: input should be a valid number"),
        (
            {"pool_gib": "auto", "pool_allocation": "first"},
            "dsruntime: pool_gib: auto takes what the rest leaves",
        ),
        ({"pool_policy": "best"}, "dsruntime.pool_policy: input should be 'frequency', 'lru',"),
        ({"prefill_tokens": 0}, "dsruntime.prefill_tokens: input should be"),
        ([], "dsruntime: input should be"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key(given: Any, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        read_settings({"dsruntime": given})
    assert says in str(error.value)
    assert "\n" not in str(error.value)
