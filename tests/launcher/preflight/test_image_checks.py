"""Our own images before a start: there or not, and what their labels say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.host.collect import collect
from dsctl.host.docker_info import _images
from dsctl.image import image_name
from dsctl.image.base import Base
from dsctl.image.build import labels
from dsctl.image.recipe import recipe
from dsctl.model.facts import Docker, DockerState, Facts
from dsctl.model.finding import Status
from dsctl.planning.catalog import load_profile
from dsctl.preflight.checks import load
from dsctl.preflight.registry import CHECKS, CheckContext, Outcome, apply

HOST = Path(__file__).parents[2] / "hosts" / "laptop-no-gpu"
BASE = Base("base:1", "sha256:" + "0" * 64, "sha256:" + "0" * 64)


@pytest.fixture(scope="module")
def good_labels() -> dict[str, str]:
    return {k: v for k, v in labels(recipe("cpu"), BASE).items() if k.startswith("dsctl.")}


def facts(images: dict[str, dict[str, str]]) -> Facts:
    docker = Docker(
        state=DockerState.OK,
        images=tuple(images),
        image_ids={name: f"sha256:{n:064}" for n, name in enumerate(images)},
        image_labels={name: own for name, own in images.items() if own},
    )
    return collect(HOST).model_copy(update={"docker": docker})


def ask(check: str, found: Facts, engine: str = "docker") -> Outcome:
    load()
    return apply(CHECKS[check], CheckContext(found, load_profile("cpu-canary"), engine=engine))


def test_images_that_are_built_are_present_and_what_they_should_be(
    good_labels: dict[str, str],
) -> None:
    found = facts({image_name("cpu"): good_labels, image_name("gateway"): {}})
    assert ask("image.present", found).status is Status.PASS
    pins = ask("image.pins", found)
    assert pins.status is Status.PASS
    assert "vLLM 0.32.0" in pins.summary


def test_an_image_that_is_not_built_is_a_warning_that_names_the_command() -> None:
    outcome = ask("image.present", facts({image_name("gateway"): {}}))
    assert outcome.status is Status.WARN
    assert image_name("cpu") in outcome.summary
    assert "dsctl image build --target cpu" in (outcome.remedy or "")
    assert "gateway" not in (outcome.remedy or "")
    assert ask("image.pins", facts({})).status is Status.SKIP


@pytest.mark.parametrize("label", ["dsctl.inputs", "dsctl.vllm", "dsctl.digest.runtime"])
def test_a_name_that_was_put_on_another_image_is_found_out(
    good_labels: dict[str, str], label: str
) -> None:
    other = {**good_labels, label: "0.31.0"}
    outcome = ask("image.pins", facts({image_name("cpu"): other}))
    assert outcome.status is Status.FAIL
    assert label.removeprefix("dsctl.") in outcome.summary + (outcome.detail or "")
    assert "--again" in (outcome.remedy or "")


def test_a_process_needs_no_image() -> None:
    assert ask("image.present", facts({}), engine="process").status is Status.SKIP


def test_of_labels_only_ours_are_kept() -> None:
    listed = [
        {"Id": "sha256:1", "RepoTags": ["a:1", "a:2"], "Labels": {"dsctl.vllm": "1", "x": "y"}},
        {"Id": "sha256:2", "RepoTags": None, "RepoDigests": ["b@sha256:3"], "Labels": None},
    ]
    assert _images(listed) == {
        "DsctlImages": ["a:1", "a:2", "b@sha256:3"],
        "DsctlImageIds": {"a:1": "sha256:1", "a:2": "sha256:1", "b@sha256:3": "sha256:2"},
        "DsctlImageLabels": {"a:1": {"dsctl.vllm": "1"}, "a:2": {"dsctl.vllm": "1"}},
    }
