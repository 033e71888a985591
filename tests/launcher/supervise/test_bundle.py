"""The bundle: whole, without secrets, and read again by `dsctl diagnose`."""

from __future__ import annotations

import json
import socket
import tarfile
from pathlib import Path

import pytest

from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.facts import Facts
from dsctl.planning.catalog import load_profile
from dsctl.supervise.bundle import diagnose_bundle, is_bundle, make_bundle
from dsctl.supervise.evidence import capture, keep
from dsctl.supervise.situation import Situation, write_situation

SAID = (
    "(Worker pid=1) ERROR RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: "
    "system has unsupported display driver / cuda driver combination"
)


class Gone:
    """An engine that has ended."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def ended(self, deployment: Deployment) -> str:
        return "exit code 1"

    def log_path(self, deployment: Deployment) -> Path:
        return self._log


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    """A failed deployment with everything beside it, secrets among it."""
    state = StateDirectory(tmp_path / "deployment")
    state.directory.mkdir()
    deployment = Deployment(
        profile="cpu-canary",
        engine="process",
        endpoint=Endpoint(port=8000),
        model="canary",
        phase=Phase.FAILED,
        since=1.0,
        started=1.0,
        env={"HF_TOKEN": "hf_abcdefghijklmnop", "HOME": "/home/alice"},
    )
    state.write(deployment)
    state.log_file.write_text(
        f"token=supersecret1 from 192.168.7.9 on {socket.gethostname()} /home/alice/x\n{SAID}\n"
    )
    state.events_file.write_text('{"t": 1.0, "phase": "failed", "event": "failed"}\n{"half')
    state.samples_file.write_text('{"t": 1.0, "phase": "loading"}\n')
    write_situation(state, Situation(profile=load_profile("cpu-canary"), plan=None, facts=Facts()))
    captured, _ = capture(Gone(state.log_file), state, deployment, "it ended", 2.0)  # type: ignore[arg-type]
    assert keep(state, captured) is not None
    return state


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
        return found


def test_it_holds_everything_and_no_secret(state: StateDirectory, tmp_path: Path) -> None:
    out = tmp_path / "b.tar.gz"
    make_bundle(state, out, 3.0)
    found = members(out)
    for name in (
        "state.json",
        "events.jsonl",
        "samples.jsonl",
        "engine.log",
        "kernel.log",
        "facts.json",
        "profile.json",
        "diagnosis.json",
        "manifest.json",
    ):
        assert name in found
    whole = "\n".join(found.values())
    for secret in ("hf_abcdefghijklmnop", "supersecret1", "192.168.7.9", "alice"):
        assert secret not in whole
    assert socket.gethostname() not in found["engine.log"]
    assert json.loads(found["events.jsonl"])["event"] == "failed"
    assert out.stat().st_mode & 0o077 == 0


def test_it_is_diagnosed_again_to_the_same_cause(state: StateDirectory, tmp_path: Path) -> None:
    out = tmp_path / "b.tar.gz"
    make_bundle(state, out, 3.0)
    assert is_bundle(str(out))
    assert diagnose_bundle(str(out)).cause.id == "driver.compat-library-shadowing"


def test_a_tar_of_something_else_is_no_bundle(tmp_path: Path) -> None:
    other = tmp_path / "x.tar.gz"
    with tarfile.open(other, "w:gz") as archive:
        archive.add(__file__, arcname="code.py")
    assert not is_bundle(str(other))
    other.write_bytes(b"\x1f\x8bgarbage")
    assert not is_bundle(str(other))


def test_nothing_started_is_nothing_to_bundle(tmp_path: Path) -> None:
    with pytest.raises(NotGoodError, match="nothing to bundle"):
        make_bundle(StateDirectory(tmp_path), tmp_path / "b.tar.gz", 0.0)


def test_a_name_that_is_no_bundle_is_refused(state: StateDirectory, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name of a bundle"):
        make_bundle(state, tmp_path / "b.zip", 0.0)


def test_only_the_newest_failures_are_kept(state: StateDirectory) -> None:
    captured, _ = capture(Gone(state.log_file), state, _read(state), "it ended", 2.0)  # type: ignore[arg-type]
    for t in range(10, 20):
        keep(state, captured.model_copy(update={"t": float(t)}))
    names = sorted(float(path.stem) for path in state.evidence_directory.glob("*.json"))
    assert names == [15.0, 16.0, 17.0, 18.0, 19.0]


def _read(state: StateDirectory) -> Deployment:
    deployment = state.read()
    assert deployment is not None
    return deployment
