"""A process engine finds the CUDA of its own environment, and nothing of the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.engine.environment import Environment
from dsctl.engine.surroundings import _CACHES, process_command
from dsctl.image.inside.serve import CACHES
from dsctl.model.endpoint import Endpoint
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile


def env_of(
    profile: str, environment: Path, scratch: Path, gpus: str | None = None
) -> dict[str, str]:
    paths = Paths(*(scratch / name for name in ("data", "state", "cache", "config")))
    command = process_command(
        load_profile(profile),
        endpoint=Endpoint(port=8000),
        checkpoint=Path("/model"),
        environment=Environment(environment, "digest"),
        runtime=None,
        paths=paths,
        gpus=gpus,
    )
    return command.env


def test_compilers_of_kernels_take_the_environments_own_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda-11")
    environment = tmp_path / "environment"
    cuda = environment / "lib/python3.11/site-packages/nvidia/cu13"
    cuda.mkdir(parents=True)
    env = env_of("dual96-native", environment, tmp_path)
    assert env["CUDA_HOME"] == str(cuda)
    assert env["PATH"].split(":")[:2] == [str(environment / "bin"), str(cuda / "bin")]


def test_without_one_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda-11")
    env = env_of("cpu-canary", tmp_path / "environment", tmp_path)
    assert "CUDA_HOME" not in env
    assert "cuda" not in env["PATH"]


def test_it_sees_the_cards_that_were_chosen_and_numbers_them_as_nvml(tmp_path: Path) -> None:
    env = env_of("dual96-native", tmp_path / "environment", tmp_path, gpus="1,3")
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in env_of("cpu-canary", tmp_path / "environment", tmp_path)


def test_caches_are_those_of_the_image_but_for_the_users_home() -> None:
    assert {name: where for name, where in CACHES.items() if name != "HOME"} == _CACHES
