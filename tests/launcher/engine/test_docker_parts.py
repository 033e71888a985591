"""The docker engine's decisions, without an engine: what is chosen, mounted, said and recorded."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsctl.engine import docker as subject
from dsctl.engine.base import Ended
from dsctl.engine.choice import choose_engine
from dsctl.engine.containers import Images, cards, container_command, guarded, refuse_open_process
from dsctl.engine.docker import DockerEngine, memory_of, project_of
from dsctl.engine.docker_client import connect, refusal
from dsctl.engine.docker_keeper import ending
from dsctl.engine.identity import identify
from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError, DsctlError, EngineError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.endpoint import Endpoint
from dsctl.model.event import Phase
from dsctl.model.facts import Docker, DockerState, Facts, Gpu, Nvml, NvmlState
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile

NAMES = ("dsctl/engine-cpu:1", "dsctl/gateway:1")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))


def answering(*images: str) -> Docker:
    return Docker(state=DockerState.OK, version="20.10.24", images=images)


def test_containers_are_the_default_where_docker_answers_and_has_the_images() -> None:
    choice = choose_engine(load_profile("cpu-canary"), None, answering(*NAMES), lambda: NAMES)
    assert choice.kind == "docker"


@pytest.mark.parametrize(
    ("docker", "why"),
    [
        (None, "no Docker engine"),
        (Docker(state=DockerState.NOT_RUNNING), "no Docker engine"),
        (Docker(state=DockerState.NO_PERMISSION), "no Docker engine"),
        (answering(), "dsctl image build --target cpu"),
        (answering("dsctl/engine-cpu:0", NAMES[1]), "dsctl image build --target cpu"),
        (answering(NAMES[0]), "dsctl image build --target gateway"),
    ],
)
def test_else_a_process_and_what_would_change_that_is_said(docker: Docker, why: str) -> None:
    choice = choose_engine(load_profile("cpu-canary"), None, docker, lambda: NAMES)
    assert choice.kind == "process"
    assert why in choice.why


@pytest.mark.parametrize("asked", ["process", "docker"])
def test_what_is_asked_for_is_taken_and_nothing_is_looked_up(asked: str) -> None:
    def images() -> tuple[str, str]:
        raise AssertionError("nobody needs to know")

    assert choose_engine(load_profile("cpu-canary"), asked, answering(), images).kind == asked


def test_somebody_elses_image_runs_in_containers_only() -> None:
    profile = load_profile("dual96-community-image")
    assert choose_engine(profile, None, None, lambda: NAMES).kind == "docker"


REFUSALS = {
    'could not select device driver "nvidia" with capabilities: [[gpu]]': (
        "container.gpu-runtime-missing"
    ),
    'could not select device driver "" with capabilities: [[gpu]]': "container.gpu-runtime-missing",
    "driver failed programming external connectivity on endpoint dsctl-1-gateway (8f): Error "
    "starting userland proxy: listen tcp4 127.0.0.1:8000: bind: address already in use": (
        "container.port-in-use"
    ),
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    "container process: error during container init: error setting rlimits for ready process: "
    "error setting rlimit type 8: operation not permitted: unknown": "container.memlock-limit",
    "something nobody has seen": "unknown",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_what_docker_refuses_has_its_cause(text: str) -> None:
    error = refusal(text, "the engine's container was started")
    assert isinstance(error, EngineError)
    assert error.cause == REFUSALS[text]
    assert error.remedy
    assert "\n" not in error.message


def test_a_directory_that_docker_does_not_see_is_named() -> None:
    text = 'invalid mount config for type "bind": bind source path does not exist: /mnt/c/model'
    assert "/mnt/c/model is not there" in refusal(text, "x").message


def test_a_daemon_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotGoodError) as caught:
        connect(f"unix://{tmp_path}/docker.sock")
    assert "\n" not in caught.value.message
    assert "--engine process" in (caught.value.remedy or "")


class _StopsHalfWay(BaseHTTPRequestHandler):
    """A Docker engine that answers who it is and then hangs up."""

    def do_GET(self) -> None:
        if not self.path.endswith("/version"):
            return
        body = b'{"ApiVersion": "1.41", "Version": "20.10.24"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815 - names of the library

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_a_daemon_that_stops_half_way_is_one_line_and_named_so(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "docker.sock"
    with socketserver.ThreadingUnixStreamServer(str(address), _StopsHalfWay) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{address}")
        (tmp_path / "model").mkdir()
        engine = DockerEngine(StateDirectory(tmp_path))
        try:
            with pytest.raises(NotGoodError, match="does not answer while") as caught:
                engine.start(deployment(), command(paths, tmp_path / "model"))
        finally:
            server.shutdown()
            thread.join()
    assert "\n" not in caught.value.message
    assert caught.value.remedy


def test_memory_is_read_from_both_kinds_of_control_groups() -> None:
    v1 = {"usage": 30, "limit": 90, "stats": {"total_rss": 20, "total_cache": 9, "rss": 1}}
    v2 = {"usage": 30, "limit": 90, "stats": {"anon": 20, "file": 9}}
    expected = {
        "rss_bytes": 20,
        "cache_bytes": 9,
        "usage_bytes": 30,
        "limit_bytes": 90,
        "processes": 7,
    }
    for memory in (v1, v2):
        assert memory_of({"memory_stats": memory, "pids_stats": {"current": 7}}) == expected
    assert memory_of({"memory_stats": {}, "pids_stats": {}}) == {}, "it has just ended"


def test_each_state_directory_has_containers_of_its_own(tmp_path: Path) -> None:
    one, two = StateDirectory(tmp_path / "one"), StateDirectory(tmp_path / "two")
    assert project_of(one) != project_of(two)
    assert project_of(one) == project_of(StateDirectory(tmp_path / "two" / ".." / "one"))
    assert DockerEngine(one).name("engine") == f"{project_of(one)}-engine"


def command(paths: Paths, checkpoint: Path, profile: str = "cpu-canary", **overrides: str) -> Any:
    loaded = load_profile(profile, overrides)
    return container_command(
        loaded,
        endpoint=Endpoint(port=8123),
        checkpoint=checkpoint,
        facts=SimpleNamespace(gpus=()),  # type: ignore[arg-type]
        images=Images(*NAMES),
        paths=paths,
    )


def test_the_deck_of_this_machine_has_no_variables(paths: Paths, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    deck = command(paths, model).deck
    assert "${" not in repr(deck)
    assert deck.gateway.ports[0].host_port == "8123"
    assert {m.target: m.source for m in deck.engine.mounts}["/model"] == str(model)
    assert all(
        spec.labels[subject.LABEL] == deck.network[: -len("-front")]
        for spec in (deck.engine, deck.gateway)
    )


def test_a_missing_model_directory_is_named_before_anything_is_made(
    paths: Paths, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="checkpoint") as caught:
        command(paths, tmp_path / "nowhere")
    assert "nowhere" in caught.value.message


def test_a_checkpoint_of_the_hub_is_mounted_with_the_files_its_links_lead_to(
    paths: Paths, tmp_path: Path
) -> None:
    repository = tmp_path / "models--deepseek-ai--x"
    snapshot = repository / "snapshots" / "abc"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repository / "blobs" / "f00").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/f00")
    engine = command(paths, snapshot).deck.engine
    assert {m.target: m.source for m in engine.mounts}["/model"] == str(repository)
    assert engine.command[0] == "/model/snapshots/abc"


def test_links_that_lead_out_of_the_checkpoint_are_refused(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"config\.json"):
        command(paths, model)


def test_experts_from_a_pack_need_a_pack(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="pack_dir"):
        command(paths, tmp_path / "model", experts="w2-resident", pool_gib="0.01")


def test_cards_are_given_by_uuid_and_missing_ones_are_counted() -> None:
    profile = load_profile("dual96-native")
    uuids = ("GPU-0", "GPU-1", "GPU-2")
    three = Nvml(
        state=NvmlState.OK, gpus=tuple(Gpu(index=n, uuid=uuid) for n, uuid in enumerate(uuids))
    )
    assert cards(profile, Facts(nvml=three)) == ("GPU-0", "GPU-1")
    one = Nvml(state=NvmlState.OK, gpus=(Gpu(index=0, uuid="GPU-0"), Gpu(index=1)))
    with pytest.raises(NotGoodError, match="needs 2 cards, the driver names 1"):
        cards(profile, Facts(nvml=one))


def test_behind_the_gateway_the_endpoint_knows_its_key(paths: Paths) -> None:
    profile = load_profile("cpu-canary")
    assert guarded(Endpoint(port=1), profile, paths).key_file == str(paths.api_keys)


@pytest.mark.parametrize(
    ("bind", "asked_at"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
    ],
)
def test_it_is_asked_where_it_is_offered(bind: str, asked_at: str, paths: Paths) -> None:
    profile = load_profile("cpu-canary", {"bind": bind})
    assert guarded(Endpoint(port=1), profile, paths).host == asked_at


def test_only_containers_are_offered_to_a_network(paths: Paths) -> None:
    with pytest.raises(ConfigError, match="no IP address"):
        guarded(Endpoint(port=1), load_profile("cpu-canary", {"bind": "everywhere"}), paths)
    with pytest.raises(ConfigError, match="has no key"):
        refuse_open_process(load_profile("cpu-canary", {"bind": "0.0.0.0"}))
    refuse_open_process(load_profile("cpu-canary", {"bind": "127.0.0.1"}))


def deployment(**more: Any) -> Deployment:
    return Deployment(
        profile="p",
        engine="docker",
        endpoint=Endpoint(port=1),
        model="m",
        phase=Phase.READY,
        since=0.0,
        started=0.0,
        **more,
    )


def test_while_dockerd_is_away_a_container_lives_as_long_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    engine = DockerEngine(StateDirectory(tmp_path))
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        mine = identify(sleeper.pid)
        running = deployment(engine_process=mine, gateway_process=mine)
        assert engine.is_alive(running)
        assert engine.memory(running) == {}
        with pytest.raises(DsctlError, match="does not answer"):
            engine.stop(running, grace_s=0.1)
    finally:
        sleeper.kill()
        sleeper.wait()
    deadline = time.monotonic() + 60
    while engine.is_alive(running):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert engine.ended(running) is None, "nobody knows how it ended"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"engine": {"Status": "running", "Running": True}}, None),
        (
            {"engine": {"Status": "exited", "ExitCode": 137, "OOMKilled": True}},
            "killed by signal 9, out of memory in its container",
        ),
        ({"engine": {"Status": "exited", "ExitCode": 1}}, "exit code 1"),
        (
            {
                "engine": {"Status": "running"},
                "gateway": {"Status": "exited", "ExitCode": 1},
            },
            "exit code 1, the gateway, nginx: bad",
        ),
    ],
)
def test_how_it_ended_names_the_container(
    states: dict[str, Any], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DockerEngine(StateDirectory(tmp_path))
    engine.gateway_log.write_text("nginx: fine\nnginx: bad\n")
    monkeypatch.setattr(DockerEngine, "_states", lambda self: states)
    ended = engine.ended(deployment())
    assert (str(ended) if ended else None) == expected
    assert ended is None or isinstance(ended, Ended)


def test_the_last_line_of_a_log_is_what_diagnose_reads() -> None:
    from dsctl.diagnose import diagnose

    line = ending({"ExitCode": 137, "OOMKilled": True})
    assert diagnose([f"dsctl: {line}"]).cause.id == "container.oom-killed"
    fine = ending({"ExitCode": 0, "OOMKilled": False})
    assert not diagnose([f"dsctl: {fine}"]).is_known
