"""`dsctl up --engine docker` with the real engine, and the Compose file alone, as users do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from docker import DockerClient

from dsctl.compose.deck import Places, deck_of
from dsctl.engine.docker_request import create_arguments
from dsctl.planning.catalog import load_profile
from tests.e2e.conftest import ROOT, Dsctl, free_port
from tests.support.docker import DockerEngine
from tests.support.images import Images

pytestmark = pytest.mark.docker

KEY = "sk-the-key-of-somebody-without-dsctl"
QUESTION = next(
    q
    for q in yaml.safe_load((ROOT / "canary" / "questions.yaml").read_text())["questions"]
    if q["kind"] == "plain" and len(q["messages"]) == 1
)
PATIENCE_S = 900.0


@pytest.fixture
def both(images: Images) -> dict[str, str]:
    """Names of the two images, built now if need be."""
    return {
        "ENGINE_IMAGE": images.ref("cpu")["tag"],
        "GATEWAY_IMAGE": images.ref("gateway")["tag"],
    }


def ask(port: int, key: str | None) -> httpx.Response:
    body = {
        "model": "deepseek-v4-canary",
        "messages": QUESTION["messages"],
        "max_tokens": 256,
        "temperature": 0.0,
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=120)


def answered(response: httpx.Response) -> bool:
    response.raise_for_status()
    text: str = response.json()["choices"][0]["message"]["content"]
    return text.strip() == QUESTION["expected"].strip()


def left(docker: DockerEngine, prefix: str) -> list[str]:
    """Containers, networks and volumes whose names begin so."""
    names = docker.docker("ps", "-a", "--format", "{{.Names}}").split()
    names += docker.docker("network", "ls", "--format", "{{.Name}}").split()
    names += docker.docker("volume", "ls", "--format", "{{.Name}}").split()
    return sorted(name for name in names if name.startswith(prefix))


def test_the_whole_chain_in_containers(
    dsctl: Dsctl, both: dict[str, str], docker: DockerEngine
) -> None:
    """up → the key, shown once → answers with it, refusals without → audit → keys → down."""
    up = dsctl.run(*dsctl.up_arguments("--engine", "docker"), timeout_s=PATIENCE_S)
    assert up.returncode == 0, up.stderr
    assert "known question answered rightly" in up.stderr
    kept = dsctl.home / "config" / "dsctl" / "api-keys"
    key = kept.read_text().split()[1]
    assert up.stderr.count(key) == 1, "shown once"
    assert kept.stat().st_mode & 0o077 == 0

    try:
        status = dsctl.status()
        assert status["ready"] is True
        assert status["engine"] == "docker"
        assert status["memory"]["rss_bytes"] > 100 << 20
        assert status["endpoint"] == f"http://127.0.0.1:{dsctl.port}/v1"
        events = (dsctl.home / "state" / "dsctl" / "deployment").rglob("*")
        assert not [p for p in events if p.is_file() and key in p.read_text(errors="replace")]

        assert answered(ask(dsctl.port, key))
        assert ask(dsctl.port, None).status_code == 401
        assert ask(dsctl.port, "sk-not-a-key").status_code == 401
        chat = dsctl.run("chat", QUESTION["messages"][0]["content"])
        assert QUESTION["expected"].strip() in chat.stdout

        audit = dsctl.run("audit", "--format", "json")
        report = json.loads(audit.stdout)
        broken = [p for p in report["promises"] if p["held"] is False]
        assert broken == []
        assert audit.returncode == 0
        assert {"gate.no-key", "gate.key", "gate.admin", "net.ipv4", "sys.mount"} <= {
            p["id"] for p in report["promises"] if p["held"]
        }

        added = dsctl.run("key", "add", "laptop").stdout.strip()
        assert answered(ask(dsctl.port, added)), "no restart is needed"
        assert dsctl.run("key", "remove", "laptop").returncode == 0
        assert ask(dsctl.port, added).status_code == 401

        again = dsctl.run(*dsctl.up_arguments("--engine", "docker"), timeout_s=PATIENCE_S)
        assert again.returncode == 0
        assert key not in again.stderr
        assert dsctl.status()["pid"] == status["pid"], "a second up is the same deployment"
        assert "Application startup complete" in dsctl.run("logs").stdout
    finally:
        down = json.loads(dsctl.run("down", "--format", "json").stdout)
    assert down["stopped"] == "cpu-canary"
    (volume,) = down["kept"]
    project = volume.removesuffix("-cache")
    assert left(docker, project) == [volume], "nothing but what it said"
    purged = json.loads(dsctl.run("down", "--volumes", "--format", "json").stdout)
    assert purged["removed"] == [volume]
    assert left(docker, project) == []


@pytest.fixture
def compose(docker: DockerEngine, tmp_path: Path) -> Any:
    """Runs Compose, old or new, on a file in `compose/`, as somebody without dsctl would."""
    if shutil.which("docker-compose"):
        program = ["docker-compose"]
    elif docker.docker("compose", "version", check=False):
        program = ["docker", "compose"]
    else:
        pytest.skip("neither docker-compose nor the Compose plugin is installed")
    project = f"dsctl-e2e-{os.getpid()}"
    variables: dict[str, str] = {}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        variables.update(more)
        return subprocess.run(
            [*program, "-p", project, "-f", "cpu-canary.yaml", *arguments],
            cwd=ROOT / "compose",
            env=docker.env | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    yield run
    run("down", "--volumes", "--timeout", "20")
    assert left(docker, project) == []


def test_the_file_alone_does_the_same(
    compose: Any, both: dict[str, str], docker: DockerEngine, tmp_path: Path
) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "keys").write_text(f"me {digest}\n")
    for path in (tmp_path, tmp_path / "keys"):
        path.chmod(0o755)
    port = free_port()
    up = compose(
        *("up", "--detach"),
        PORT=str(port),
        MONITOR_PORT=str(free_port()),
        KEYS_DIR=str(tmp_path / "keys"),
        **both,
    )
    assert up.returncode == 0, up.stderr
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            response = ask(port, KEY)
        except httpx.HTTPError:
            response = None
        if response is not None and response.status_code == 200:
            break
        assert time.monotonic() < deadline, compose("logs", "--no-color").stdout[-4000:]
        time.sleep(1)
    assert answered(response)
    assert ask(port, None).status_code == 401
    names = docker.docker("ps", "--format", "{{.Names}}").split()
    engine, gateway = (
        next(n for n in names if n.startswith(f"dsctl-e2e-{os.getpid()}") and role in n)
        for role in ("engine", "gateway")
    )
    auditor = Dsctl(tmp_path, port)
    audit = auditor.run("audit", "--format", "json", "--engine", engine, "--gateway", gateway)
    broken = [p for p in json.loads(audit.stdout)["promises"] if p["held"] is False]
    assert broken == []


#: What Docker itself fills in, or names after the project.
OWN = {"LogConfig", "NetworkMode", "Mounts", "Binds", "PortBindings", "ConsoleSize"}


def test_compose_and_up_ask_docker_for_the_same_containers(
    compose: Any, base_image: str, docker: DockerEngine, tmp_path: Path
) -> None:
    """Both are made, neither is started, and what the daemon wrote down is compared."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "keys").touch()
    made = compose(
        *("up", "--no-start"),
        KEYS_DIR=str(tmp_path / "keys"),
        ENGINE_IMAGE=base_image,
        GATEWAY_IMAGE=base_image,
    )
    assert made.returncode == 0, made.stderr
    project = f"dsctl-e2e-{os.getpid()}"
    deck = deck_of(
        load_profile("cpu-canary"),
        Places(
            engine_image=base_image,
            gateway_image=base_image,
            model=str(ROOT / "canary" / "model"),
            keys=str(tmp_path / "keys"),
            hardening=str(ROOT / "hardening"),
            bind="127.0.0.1",
            port="8000",
            monitor_port="8001",
            network=f"{project}_front",
            run_volume=f"{project}_run",
            cache_volume=f"{project}_cache",
        ),
    )
    client = DockerClient(base_url=docker.host)
    try:
        for spec in deck.containers:
            theirs = next(
                c for c in client.containers.list(all=True) if f"{project}_{spec.role}" in c.name
            )
            name = f"{project}-up-{spec.role}"
            client.api.create_container(**create_arguments(client.api, spec, name))
            try:
                ours = client.api.inspect_container(name)
            finally:
                client.api.remove_container(name, v=True)
            assert comparable(ours) == comparable(theirs.attrs)
    finally:
        client.close()


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """What the two have to agree in."""
    host = {k: v or None for k, v in found["HostConfig"].items() if k not in OWN}
    options = host["SecurityOpt"]
    host["SecurityOpt"] = [options[0], json.loads(options[1].partition("=")[2])]
    config = found["Config"]
    own = {k: v for k, v in config["Labels"].items() if k.startswith("io.dsctl.")}
    return host | {
        "log": found["HostConfig"]["LogConfig"],
        "mounts": sorted((m["Destination"], m["Source"], m["RW"]) for m in found["Mounts"]),
        "ports": {
            port: [(b["HostIp"], b["HostPort"]) for b in bound]
            for port, bound in (found["HostConfig"]["PortBindings"] or {}).items()
        },
        "env": sorted(config["Env"] or []),
        "command": config["Cmd"],
        "entrypoint": config["Entrypoint"],
        "user": config["User"],
        "hostname": config["Hostname"],
        "labels": own,
    }


def test_a_missing_variable_and_a_missing_directory_are_said(
    compose: Any, docker: DockerEngine, base_image: str, tmp_path: Path
) -> None:
    gone = compose(
        *("up", "--no-start"),
        MODEL_DIR=str(tmp_path / "nowhere"),
        KEYS_DIR=str(tmp_path),
        ENGINE_IMAGE=base_image,
        GATEWAY_IMAGE=base_image,
    )
    assert gone.returncode != 0
    assert "nowhere" in gone.stderr
