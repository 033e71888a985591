"""What profiles pass to the engine plugin is what the plugin takes: its own settings read them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from dsctl.engine.command import additional_config
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.startable import lack_of

RUNTIME = Path(__file__).resolve().parents[3] / "runtime"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin's settings: they need pydantic and no engine."""
    monkeypatch.syspath_prepend(str(RUNTIME))
    return importlib.import_module("dsruntime.tiers.settings")


@pytest.mark.parametrize("name", profile_names())
def test_the_plugin_takes_the_settings_of_every_profile(name: str, plugin: Any) -> None:
    profile = load_profile(name, {"pack_dir": "/packs/a"})
    settings = plugin.read_settings(additional_config(profile))
    assert settings.experts == profile.value("experts", "native")


@pytest.mark.parametrize("name", profile_names())
def test_a_gpu_takes_those_of_every_profile_that_starts_there(name: str, plugin: Any) -> None:
    profile = load_profile(name, {"pack_dir": "/packs/a"})
    if profile.hardware.device == "cpu":
        return
    possible = importlib.import_module("dsruntime.kernels.possible")
    settings = plugin.read_settings(additional_config(profile))
    if lack_of(profile) is None:
        possible.require_possible(settings)
    elif settings.experts != "native":
        with pytest.raises(plugin.SettingsError):
            possible.require_possible(settings)
