"""Which pack a start uses: the named one, or one that fits the checkpoint and the cards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile
from dsctl.planning.packs import cannot_do_without, find_pack, packs_of, with_pack

RESIDENT = "single96-resident"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model-1.safetensors").write_bytes(b"weights")
    return directory


def make(pack: Path, *, ranks: int = 1, size: int = 7, age_s: float = 0.0) -> Path:
    pack.mkdir(parents=True)
    shards = [{"name": "model-1.safetensors", "size_bytes": size}]
    sidecar = pack / "pack.json"
    sidecar.write_text(json.dumps({"tensor_parallel": ranks, "source": {"shards": shards}}))
    os.utime(sidecar, (1e9 - age_s, 1e9 - age_s))
    return pack


def taken(checkpoint: Path, paths: Paths, **overrides: str) -> str | None:
    found: str | None = with_pack(load_profile(RESIDENT, overrides), checkpoint, paths).value(
        "pack_dir"
    )
    return found


def test_the_pack_where_packs_are_kept_is_used_without_being_named(
    checkpoint: Path, paths: Paths
) -> None:
    assert taken(checkpoint, paths) is None
    made = make(packs_of(paths) / "pack-a")
    assert taken(checkpoint, paths) == str(made)


def test_one_that_does_not_fit_is_never_taken_unnamed(checkpoint: Path, paths: Paths) -> None:
    make(packs_of(paths) / "of-another-model", size=8)
    two = make(packs_of(paths) / "for-two", ranks=2)
    assert taken(checkpoint, paths) is None
    older = make(packs_of(paths) / "fits", age_s=1000)
    assert taken(checkpoint, paths) == str(older)
    dual = with_pack(load_profile("dual96-w2"), checkpoint, paths)
    assert dual.value("pack_dir") == str(two)


def test_a_place_that_is_named_may_be_the_pack_or_hold_it(checkpoint: Path, paths: Paths) -> None:
    place = paths.data / "elsewhere"
    odd = make(place / "odd", size=8)
    assert taken(checkpoint, paths, pack_dir=str(odd)) == str(odd)
    assert taken(checkpoint, paths, pack_dir=str(place)) == str(odd), "preflight judges it"
    fitting = make(place / "fits", age_s=1000)
    assert taken(checkpoint, paths, pack_dir=str(place)) == str(fitting)
    assert taken(checkpoint, paths, pack_dir="/nowhere") == "/nowhere"


def test_damaged_sidecars_fit_nothing(checkpoint: Path, paths: Paths) -> None:
    (packs_of(paths) / "half").mkdir(parents=True)
    (packs_of(paths) / "half" / "pack.json").write_text('{"tensor_par')
    assert find_pack(packs_of(paths), checkpoint, 1) == packs_of(paths) / "half"
    assert taken(checkpoint, paths) is None


def test_native_experts_want_none(checkpoint: Path, paths: Paths) -> None:
    make(packs_of(paths) / "a")
    native = load_profile("dual96-native")
    assert with_pack(native, checkpoint, paths) is native


@pytest.mark.parametrize(
    ("profile", "overrides", "engine", "needed"),
    [
        (RESIDENT, {}, "process", False),
        (RESIDENT, {}, "docker", True),
        ("single96-basecache", {}, "process", True),
        ("cpu-canary", {}, "docker", False),
        ("cpu-canary", {"experts": "w2-resident", "mapped_layers": "0"}, "process", True),
    ],
)
def test_who_cannot_do_without(
    profile: str, overrides: dict[str, str], engine: str, needed: bool
) -> None:
    assert cannot_do_without(load_profile(profile, overrides), engine) is needed
