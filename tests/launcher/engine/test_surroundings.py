"""A process engine finds the CUDA of its own environment, and nothing of the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.engine.environment import Environment
from dsctl.engine.surroundings import process_command
from dsctl.model.endpoint import Endpoint
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile


def env_of(profile: str, environment: Path, scratch: Path) -> dict[str, str]:
    paths = Paths(*(scratch / name for name in ("data", "state", "cache", "config")))
    command = process_command(
        load_profile(profile),
        endpoint=Endpoint(port=8000),
        checkpoint=Path("/model"),
        environment=Environment(environment, "digest"),
        runtime=None,
        paths=paths,
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
