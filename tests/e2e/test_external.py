"""Somebody else's image from its vetting to an answer; nothing in it is made for our containers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import ROOT, Dsctl
from tests.e2e.test_docker import PATIENCE_S, QUESTION, answered, ask, left
from tests.support.docker import DockerEngine
from tests.support.images import Images

pytestmark = pytest.mark.docker

BUILD = Path(__file__).parent / "vet_images"
PROGRAM = ["/opt/engine/bin/python", "-P", "-m", "vllm.entrypoints.cli.main", "serve"]


@pytest.fixture(scope="module")
def foreign(docker: DockerEngine, images: Images) -> Iterator[str]:
    """Our engine without what makes it ours; its id."""
    tag = f"dsctl-test/foreign:{os.getpid()}"
    engine = images.ref("cpu")["tag"]
    images.ref("gateway")
    docker.docker(
        *("build", "-q", "--network", "none", "-f", str(BUILD / "foreign.Dockerfile")),
        *("--build-arg", f"ENGINE={engine}", "-t", tag, str(BUILD)),
        timeout_s=PATIENCE_S,
    )
    yield docker.docker("image", "inspect", "--format", "{{.Id}}", tag)
    docker.docker("rmi", "-f", tag, check=False)


def profile_of(image: str, directory: Path) -> str:
    """The canary's profile, served by that image."""
    profile = yaml.safe_load((ROOT / "profiles" / "cpu-canary.yaml").read_text())
    profile |= {
        "id": "theirs",
        "status": "external",
        "status_reason": "somebody else's image",
        "verified": "none",
    }
    profile.pop("verified_how")
    profile["engine"] |= {"external": True, "image": image, "program": PROGRAM}
    switch = {"value": 1, "source": "choice", "why": "there is no compiler in the image"}
    profile["env"]["TORCHDYNAMO_DISABLE"] = switch
    file = directory / "theirs.yaml"
    file.write_text(yaml.safe_dump(profile, sort_keys=False))
    return str(file)


def test_a_vetted_image_of_somebody_else_answers_and_holds(
    dsctl: Dsctl, docker: DockerEngine, base_image: str, foreign: str, tmp_path: Path
) -> None:
    config = json.loads(docker.docker("image", "inspect", foreign))[0]["Config"]
    assert not config.get("Entrypoint")
    assert not any(line.startswith("DSCTL_IMAGE=") for line in config["Env"])
    dsctl.extra["XDG_DATA_HOME"] = str(tmp_path / "data")
    profile = profile_of(foreign, tmp_path)

    vet = dsctl.run(
        *("image", "vet", foreign, "--profile", profile, "--trap-image", base_image),
        *("--watch", "5"),
        timeout_s=PATIENCE_S,
    )
    assert vet.returncode == 0, vet.stdout + vet.stderr

    up = dsctl.run(
        *("up", "--profile", profile, "--set", f"port={dsctl.port}", "--engine", "docker"),
        timeout_s=PATIENCE_S,
    )
    assert up.returncode == 0, up.stderr + dsctl.run("logs").stdout[-4000:]
    try:
        (kept,) = (dsctl.home / "config").rglob("api-keys")
        key = kept.read_text().split()[1]
        assert dsctl.status()["ready"] is True
        assert answered(ask(dsctl.port, key))
        assert ask(dsctl.port, None).status_code == 401
        chat = dsctl.run("chat", QUESTION["messages"][0]["content"])
        assert QUESTION["expected"].strip() in chat.stdout
        audit = dsctl.run("audit", "--format", "json")
        report = json.loads(audit.stdout)
        assert [p for p in report["promises"] if p["held"] is False] == []
        assert audit.returncode == 0
        held = {p["id"] for p in report["promises"] if p["held"]}
        assert {"fs.root", "fs.mounts", "fs.noexec", "net.ipv4", "gate.no-key", "gate.key"} <= held
        names = docker.docker("ps", "--format", "{{.Names}}").split()
        project = next(
            n.removesuffix("-engine")
            for n in names
            if n.startswith("dsctl-") and n.endswith("-engine")
        )
    finally:
        down = json.loads(dsctl.run("down", "--format", "json").stdout)
    assert down["stopped"] == "theirs"
    assert down["kept"] == []
    assert left(docker, project) == []
