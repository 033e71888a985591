"""`image.vetted` in preflight: what a vet says about the image that is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsctl.model.facts import Docker, DockerState, Facts
from dsctl.model.finding import Status
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile
from dsctl.preflight import checks
from dsctl.preflight.outcome import Outcome
from dsctl.preflight.registry import CHECKS, CheckContext, apply
from dsctl.vet.values import RunKind, Vet
from dsctl.vet.vetfile import ensure_key, seal, vet_path, write_vet
from tests.launcher.vet.values import IMAGE_ID, all_known, community, facts, run, vet_of

checks.load()
PROFILE = community()
RUNS = (run(), all_known(PROFILE), run(RunKind.SERVE))


@pytest.fixture
def context(tmp_path: Path) -> CheckContext:
    paths = Paths(tmp_path / "data", tmp_path / "state", tmp_path / "cache", tmp_path / "config")
    docker = Docker(state=DockerState.OK, images=("a:b",), image_ids={"a:b": IMAGE_ID})
    return CheckContext(Facts(source="live", docker=docker), PROFILE, paths=paths, engine="docker")


def checked(context: CheckContext, vet: Vet | None = None) -> Outcome:
    if vet is not None:
        assert context.paths is not None
        write_vet(vet_path(context.paths, vet.image_id), seal(vet, ensure_key(context.paths)))
    return apply(CHECKS["image.vetted"], context)


def test_without_a_vet_it_fails_and_says_how_to_make_one(context: CheckContext) -> None:
    found = checked(context)
    assert found.status is Status.FAIL
    assert found.remedy == f"`dsctl image vet {IMAGE_ID} --profile dual96-community-image`"


def test_a_good_vet_passes_and_doubts_warn(context: CheckContext) -> None:
    assert checked(context, vet_of(facts(), RUNS, PROFILE)).status is Status.PASS
    doubted = checked(context, vet_of(facts(user=""), RUNS, PROFILE))
    assert (doubted.status, "runs as root" in doubted.summary) == (Status.WARN, True)


def test_our_own_images_and_absent_ones_need_none(context: CheckContext) -> None:
    own = replace(context, profile=load_profile("cpu-canary"))
    assert checked(own).status is Status.SKIP
    nothing = Docker(state=DockerState.OK, images=(), image_ids={})
    absent = replace(context, facts=Facts(source="live", docker=nothing))
    assert checked(absent).status is Status.SKIP
    recorded = replace(context, paths=None)
    assert checked(recorded).status is Status.SKIP
