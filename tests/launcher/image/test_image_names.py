"""An image's name is a digest of all that goes into it, and of nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsctl.image import image_name
from dsctl.image.names import TARGETS, Target, inputs_of, lock_directory


@pytest.mark.parametrize("target", TARGETS)
def test_the_name_is_the_repository_and_twelve_digits_of_the_inputs(target: Target) -> None:
    repository, _, tag = image_name(target).partition(":")
    assert repository == {"gateway": "dsctl/gateway"}.get(target, f"dsctl/engine-{target}")
    assert tag == inputs_of(target).digest[:12]


def test_equal_inputs_have_equal_names_and_targets_differ() -> None:
    assert inputs_of("cpu") == inputs_of("cpu")
    assert len({inputs_of(target).digest for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("name", ["cpu.lock", "cpu.debs.json", "tools.lock"])
def test_another_lock_makes_another_image(tmp_path: Path, name: str) -> None:
    locks = tmp_path / "locks"
    shutil.copytree(lock_directory(), locks)
    before = inputs_of("cpu", locks)
    assert before == inputs_of("cpu")
    with (locks / name).open("a") as file:
        file.write("\n")
    assert inputs_of("cpu", locks).digest != before.digest


def test_the_gateway_does_not_change_with_the_engine(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    shutil.copytree(lock_directory(), locks)
    (locks / "cpu.lock").write_text("# pythons: 3.11\n")
    assert inputs_of("gateway", locks) == inputs_of("gateway")
