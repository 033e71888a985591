"""`dsctl image vet` on real images made here, in a real Docker engine, with no network at all."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import PATIENCE_S, Dsctl
from tests.support.docker import DockerEngine

pytestmark = pytest.mark.docker

HERE = Path(__file__).parent / "vet_images"
TAG = "dsctl-test/vet"
PROFILE = """
schema: 1
id: theirs
title: Somebody else's engine
summary: An image that was not built here.
status: external
status_reason: somebody else's image
verified: none
hardware: {{device: cpu}}
engine: {{version: 0.32.0, environment: cpu, external: true, image: "{image}"}}
model: {{checkpoint: canary/model, served_name: canary, geometry: canary}}
knobs:
  max_model_len: {{value: 256, source: seed}}
  block_size: {{value: 16, source: seed}}
  moe_backend: {{value: b12x, source: seed}}
"""

Build = Callable[..., str]


@pytest.fixture(scope="module")
def build(docker: DockerEngine, base_image: str) -> Iterator[Build]:
    """Builds a target of the Dockerfile; gives the id. All that were built go at the end."""
    made: list[str] = []

    def make(target: str, **arguments: str) -> str:
        tag = f"{TAG}:{target}-{len(made)}-{os.getpid()}"
        pairs = {"BASE": base_image, **arguments}.items()
        options = [word for name, value in pairs for word in ("--build-arg", f"{name}={value}")]
        docker.docker(
            "build", "-q", "--network", "none", "--target", target, "-t", tag, *options, str(HERE)
        )
        made.append(tag)
        return docker.docker("image", "inspect", "--format", "{{.Id}}", tag)

    yield make
    for tag in made:
        docker.docker("rmi", "-f", tag, check=False)


class Vetter:
    """Vets as a user with a home of its own, the trap in the base image."""

    def __init__(self, user: Dsctl, trap_image: str) -> None:
        self.user = user
        self._trap = ["--trap-image", trap_image]

    def command(self, image: str, *more: str) -> list[str]:
        return self.user.command("image", "vet", image, *self._trap, *more)

    def run(self, image: str, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(image, *more),
            env=self.user.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )

    def vet(self, image: str, *more: str) -> dict[str, Any]:
        """The vet as JSON."""
        done = self.run(image, "--format", "json", *more)
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (found["verdict"] == "fail")
        return found


@pytest.fixture
def vetter(tmp_path: Path, docker: DockerEngine, base_image: str) -> Iterator[Vetter]:
    yield Vetter(Dsctl(tmp_path, 0, {"XDG_DATA_HOME": str(tmp_path / "data")}), base_image)
    assert left(docker) == []


def left(docker: DockerEngine) -> list[str]:
    """Containers of vettings that this test process started."""
    lines = docker.docker(
        "ps",
        "-a",
        "--filter",
        "label=dsctl.vet.run",
        "--format",
        '{{.ID}} {{.Label "dsctl.vet.owner"}}',
    ).splitlines()
    return [line for line in lines if _is_ours(line.split()[1])]


def _is_ours(owner: str) -> bool:
    """Whether a vetting's process is a child of ours, or gone: other users' live on."""
    try:
        process = psutil.Process(int(owner.split(":")[1]))
    except psutil.NoSuchProcess:
        return True
    return any(parent.pid == os.getpid() for parent in process.parents())


def statuses(vet: dict[str, Any]) -> dict[str, str]:
    return {f["id"]: f["status"] for f in vet["findings"] if f["status"] != "pass"}


def finding(vet: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in vet["findings"] if f["id"] == name)
    return found


def profile_of(image: str, directory: Path) -> str:
    file = directory / "theirs.yaml"
    file.write_text(PROFILE.format(image=image))
    return str(file)


def image_check(user: Dsctl, profile: str) -> tuple[str, str]:
    """What preflight says about the vet of the profile's image."""
    done = user.run("preflight", "--profile", profile, "--engine", "docker", "--format", "json")
    found = json.loads(done.stdout)
    one = next(f for f in found["findings"] if f["id"] == "image.vetted")
    return one["status"], one["summary"]


def test_a_clean_engine_passes_and_only_its_untouched_vet_lets_it_start(
    vetter: Vetter, docker: DockerEngine, build: Build, tmp_path: Path
) -> None:
    image = build("engine")
    profile = profile_of(image, tmp_path)
    refused = vetter.user.run("up", "--profile", profile, "--format", "json")
    assert refused.returncode == 1
    assert "may not be started: it was never vetted here" in refused.stdout

    vet = vetter.vet(image, "--profile", profile, "--watch", "3")
    assert statuses(vet) == {}
    assert vet["verdict"] == "pass"
    assert [(run["kind"], run["exit_code"]) for run in vet["runs"]] == [
        ("entrypoint", None),
        ("help", 0),
        ("flags", 2),
        ("serve", None),
    ]
    assert {run["kind"]: run["families"] for run in vet["runs"]}["serve"] == [4, 6]
    assert {"--moe-backend", "--uds"} <= set(vet["flags"]["flags"])
    assert any(p["name"] == "libc6" for p in vet["facts"]["packages"])
    assert image_check(vetter.user, profile)[0] == "pass"

    moving = profile_of(f"{TAG}:moving", tmp_path)
    docker.docker("tag", image, f"{TAG}:moving")
    assert image_check(vetter.user, moving)[0] == "pass"
    docker.docker("tag", build("older"), f"{TAG}:moving")
    status, said = image_check(vetter.user, moving)
    assert (status, "never vetted" in said) == ("fail", True)
    docker.docker("rmi", f"{TAG}:moving")

    profile = profile_of(image, tmp_path)
    (kept,) = (tmp_path / "data" / "dsctl" / "vets").glob("*.json")
    assert f"# {image}: pass" in kept.with_suffix(".md").read_text()
    kept.write_text(kept.read_text().replace('"verdict": "pass"', '"verdict": "warn"'))
    status, said = image_check(vetter.user, profile)
    assert (status, "edited" in said) == ("fail", True)


def host_address() -> str:
    """An IPv4 address at which this very machine could be reached, were there a way."""
    found = [
        a.address for n in psutil.net_if_addrs().values() for a in n if a.family == socket.AF_INET
    ]
    return next((a for a in found if not a.startswith("127.")), "203.0.113.9")


WAYS = [
    ("look_up", "", "egress.names", "dns telemetry.example.org"),
    ("connect", "203.0.113.9", "egress.connections", "tcp 203.0.113.9:4444"),
    ("connect", "2001:db8::1", "egress.connections", "tcp [2001:db8::1]:4444"),
    ("late", "203.0.113.9", "egress.connections", "tcp 203.0.113.9:4444"),
    ("child", "203.0.113.9", "egress.connections", "tcp 203.0.113.9:4444"),
    ("connect", "telemetry.example.org", "egress.connections", "tcp telemetry.example.org:4444"),
]


@pytest.mark.parametrize(("way", "address", "id", "told"), WAYS, ids=lambda v: str(v))
def test_whatever_way_it_phones_home_it_is_caught_and_fails(
    vetter: Vetter, build: Build, way: str, address: str, id: str, told: str
) -> None:
    port = "4444" if address else ""
    vet = vetter.vet(build("phone", WAY=way, ADDRESS=address, PORT=port), "--watch", "120")
    assert finding(vet, id)["status"] == "fail"
    assert told in finding(vet, id)["detail"]
    (run,) = vet["runs"]
    assert run["exit_code"] == 0  # its call was answered, so it went on to its end
    if address and way != "look_up":
        assert run["attempts"][-1]["said"] == "here I am."
    if way == "late":
        assert run["attempts"][0]["at_s"] >= 3


def test_not_even_this_machine_can_be_reached_from_the_trap(vetter: Vetter, build: Build) -> None:
    address = host_address()
    with socket.create_server(("", 0)) as listener:
        listener.setblocking(False)
        port = str(listener.getsockname()[1])
        vet = vetter.vet(
            build("phone", WAY="connect", ADDRESS=address, PORT=port), "--watch", "120"
        )
        assert f"tcp {address}:{port}" in finding(vet, "egress.connections")["detail"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_root_and_a_setuid_program_are_found_without_running_it(
    vetter: Vetter, build: Build
) -> None:
    vet = vetter.vet(build("setuid"), "--static")
    assert statuses(vet) == {"image.user": "warn", "files.setuid": "fail"}
    assert "4755 /usr/local/bin/helper" in finding(vet, "files.setuid")["detail"]
    assert vet["runs"] == []


def test_a_flag_that_its_parser_does_not_know_fails_and_is_named(
    vetter: Vetter, build: Build, tmp_path: Path
) -> None:
    image = build("older")
    profile = profile_of(image, tmp_path)
    done = vetter.run(image, "--profile", profile, "--watch", "2")
    assert done.returncode == 1
    assert "its parser refuses what the profile says: --moe-backend" in done.stdout
    status, said = image_check(vetter.user, profile)
    assert (status, "--moe-backend" in said) == ("fail", True)


def test_a_tag_is_told_to_be_one(vetter: Vetter, docker: DockerEngine, build: Build) -> None:
    image = build("engine")
    docker.docker("tag", image, f"{TAG}:moving")
    try:
        vet = vetter.vet(f"{TAG}:moving", "--static")
    finally:
        docker.docker("rmi", f"{TAG}:moving")
    assert statuses(vet) == {"image.pinned": "warn"}
    assert image in finding(vet, "image.pinned")["summary"]


def _owner_of_a_running_one(docker: DockerEngine, pid: int) -> bool:
    labels = docker.docker(
        "ps", "--filter", "label=dsctl.vet.run", "--format", '{{.Label "dsctl.vet.owner"}}'
    ).splitlines()
    return sum(f":{pid}:" in label for label in labels) == 2  # the trap and what is in it


def _watching(vetter: Vetter, docker: DockerEngine, image: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        vetter.command(image, "--watch", "600"),
        env=vetter.user.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not _owner_of_a_running_one(docker, process.pid):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "nothing was started"
        time.sleep(0.2)
    return process


def test_ctrl_c_leaves_nothing(vetter: Vetter, docker: DockerEngine, build: Build) -> None:
    process = _watching(vetter, docker, build("engine"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert left(docker) == []


def test_what_a_killed_vetting_left_the_next_one_removes(
    vetter: Vetter, docker: DockerEngine, build: Build
) -> None:
    image = build("engine")
    process = _watching(vetter, docker, image)
    with contextlib.closing(process.stdout), contextlib.closing(process.stderr):  # type: ignore[type-var]
        process.kill()
        process.wait()
    assert len(left(docker)) == 2
    vetter.vet(image, "--static")
    assert left(docker) == []


def test_bad_input_is_one_line_and_a_remedy(vetter: Vetter, build: Build, tmp_path: Path) -> None:
    nowhere = Dsctl(tmp_path, 0, {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    image = build("setuid")

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    for done, words in (
        (vetter.run("no/such:image"), "no image no/such:image on this machine"),
        (vetter.run("Not A Name"), "is no name of an image"),
        (vetter.run(image, "--trap-image", "no/such:image"), "no image no/such:image"),
        (vetter.run(image, "--trap-image", image), "cannot be watched by itself"),
        (vetter.run(image, "--profile", "nope"), "nope"),
        (vetter.run(image, "--policy", str(tmp_path / "none.yaml")), "none.yaml cannot be read"),
        (vetter.run(image, "--static", "-o", "/proc/x/vet.json"), "/proc/x"),
        (
            vetter.run(image, "--static", "-o", str(tmp_path / "v.json"), preexec_fn=no_room),
            "cannot be written",
        ),
        (nowhere.run("image", "vet", image), "Docker engine"),
    ):
        assert done.returncode in (1, 2), done
        lines = [
            line
            for line in done.stderr.splitlines()
            if not line.startswith(("reading ", "Docker copies "))
        ]
        assert len(lines) == 2, done.stderr
        assert words in lines[0], done.stderr
        assert lines[1].startswith("  what to do: ")
