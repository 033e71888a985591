"""Packs of the canary, made once. numba compiles on first use: no deadline per example."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import settings

from dsruntime.codec.layout import Correction
from dsruntime.pack.build import build

if importlib.util.find_spec("torch") is None:
    collect_ignore = ["test_tier_weights.py", "test_tier_engine.py", "test_rank_agreement.py"]

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

CANARY = Path(__file__).parents[3] / "canary" / "model"


@pytest.fixture(scope="session")
def canary_packs(tmp_path_factory: pytest.TempPathFactory) -> dict[Correction, Path]:
    """The canary's pack in each coding."""
    root = tmp_path_factory.mktemp("packs")
    return {coding: build(CANARY, root, correction=coding).directory for coding in Correction}
