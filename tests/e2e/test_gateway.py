"""The gateway's image before a scripted engine: who gets in, to what, and what is written down."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.docker import DockerEngine
from tests.support.endpoint import Endpoint, by_model
from tests.support.images import Images

pytestmark = pytest.mark.docker

KEY, OTHER = "ds-first-key", "ds-second-key"
CHAT = "/v1/chat/completions"
ASK = {"role": "user", "content": "xyzzy-of-the-prompt"}
#: Routes of vLLM 0.32 that nobody may reach from outside: administration, debugging, documents.
ADMIN = (
    *("/server_info", "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/pause", "/resume"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/start_profile"),
    *("/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/docs", "/redoc"),
    *("/openapi.json", "/static/x", "/tokenizer_info", "/scale_elastic_ep", "/update_weights"),
    *("/init_weight_transfer_engine", "/abort_requests", "/invocations", "/ping", "/load"),
    *("/version", "/health", "/metrics", "/fault_tolerance/status", "/release_kv_cache_memory"),
    *("/v1/chat/completions/render", "/inference/v1/generate", "/v1/audio/transcriptions"),
)


@dataclass
class Gateway:
    """A running gateway: the API's address, the host's, its files, its container."""

    api: str
    host: str
    home: Path
    container: str
    docker: DockerEngine
    engine: Endpoint

    def keys(self, *lines: str) -> None:
        """Replace the keys, as a rotation does."""
        scratch = self.home / "keys" / ".new"
        scratch.write_text("".join(f"{line}\n" for line in lines))
        scratch.chmod(0o644)
        scratch.replace(self.home / "keys" / "keys")

    def get(self, path: str, key: str | None = KEY, **more: str) -> httpx.Response:
        headers = more | ({"authorization": f"Bearer {key}"} if key else {})
        return httpx.get(self.api + path, headers=headers, timeout=30)


def line(name: str, key: str) -> str:
    return f"{name} {hashlib.sha256(key.encode()).hexdigest()}"


def published(docker: DockerEngine, container: str, port: int) -> str:
    return docker.docker("port", container, str(port)).splitlines()[0]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Not below pytest's own directory, whose parents are closed to the gateway's user."""
    path = Path(tempfile.mkdtemp(prefix="dsctl-gw-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def start(
    docker: DockerEngine, tag: str, home: Path, engine: Endpoint, *arguments: str, scheme: str
) -> Gateway:
    mounts = {"run": "/run/engine", "keys": "/etc/gateway/keys", "tls": "/etc/gateway/tls"}
    options = [f"-v={home / name}:{place}:ro" for name, place in mounts.items()]
    options += ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    options += ["--tmpfs=/tmp", "-p=127.0.0.1::8000", "-p=127.0.0.1::8001"]
    container = docker.docker("run", "-d", *options, tag, *arguments)
    api, host = (published(docker, container, port) for port in (8000, 8001))
    made = Gateway(f"{scheme}://{api}", f"http://{host}", home, container, docker, engine)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(made.host + "/health", timeout=5)
            return made
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(f"the gateway does not come up: {docker.docker('logs', container)}")


@pytest.fixture(scope="module")
def engine(home: Path) -> Iterator[Endpoint]:
    for name in ("run", "keys", "tls"):
        (home / name).mkdir()
    socket = home / "run" / "engine.sock"
    with Endpoint(by_model, models=("steady", "slow"), uds=str(socket)) as endpoint:
        if os.geteuid() == 0:  # as the engine leaves it
            socket.chmod(0o770)
            os.chown(socket, 10001, 10001)
        else:
            socket.chmod(0o777)
        endpoint.pages |= {"/health": "", "/metrics": "vllm:up 1\n", "/server_info": "secret"}
        yield endpoint


@pytest.fixture(scope="module")
def running(
    images: Images, docker: DockerEngine, home: Path, engine: Endpoint
) -> Iterator[Gateway]:
    made = start(docker, images.ref("gateway")["tag"], home, engine, scheme="http")
    yield made
    docker.docker("rm", "-f", made.container)


@pytest.fixture
def gateway(running: Gateway) -> Gateway:
    running.keys(line("me", KEY))
    return running


@pytest.mark.parametrize("key", [None, "", "wrong", KEY[:-1], KEY + "x", KEY.upper(), "me"])
def test_nobody_gets_in_without_a_whole_key(gateway: Gateway, key: str | None) -> None:
    answer = gateway.get("/v1/models", key)
    assert answer.status_code == 401
    assert "API key" in answer.json()["error"]["message"]


def test_a_key_gets_in_either_way_it_is_sent_and_the_engine_never_sees_it(gateway: Gateway) -> None:
    assert gateway.get("/v1/models").json()["data"][0]["id"] == "steady"
    assert gateway.get("/v1/models", None, **{"x-api-key": KEY}).status_code == 200
    body = {"model": "steady", "messages": [ASK]}
    answer = httpx.post(
        gateway.api + CHAT, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=30
    )
    assert answer.status_code == 200
    assert KEY not in repr(gateway.engine.served[-1])


@pytest.mark.parametrize("path", ADMIN)
def test_what_administers_the_engine_is_not_reachable(gateway: Gateway, path: str) -> None:
    for method in ("GET", "POST"):
        answer = httpx.request(
            method, gateway.api + path, headers={"authorization": f"Bearer {KEY}"}, timeout=30
        )
        assert answer.status_code == 404, (method, path)
        assert "not served here" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../server_info",
        "/v1//models/..%2f..%2fserver_info",
        "/v1/models%00",
        "/V1/models",
    ],
)
def test_a_path_in_disguise_is_not_served(gateway: Gateway, path: str) -> None:
    done = subprocess.run(
        ["curl", "-s", "--path-as-is", "-H", f"Authorization: Bearer {KEY}", gateway.api + path],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "secret" not in done.stdout
    assert "data" not in done.stdout


def test_methods_that_a_path_has_not_are_refused(gateway: Gateway) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.get(gateway.api + CHAT, headers=headers).status_code == 405
    assert httpx.delete(gateway.api + "/v1/models", headers=headers).status_code == 405


def test_health_and_metrics_are_on_the_hosts_port_alone(gateway: Gateway) -> None:
    assert "vllm:up" in httpx.get(gateway.host + "/metrics").text
    for path in ("/v1/models", CHAT, "/server_info"):
        assert httpx.get(gateway.host + path).status_code == 404


def test_tokens_come_out_one_by_one(gateway: Gateway) -> None:
    body = {"model": "slow", "stream": True, "max_tokens": 8, "messages": [ASK]}
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", gateway.api + CHAT, json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        chunks = [chunk for chunk in answer.iter_raw() if chunk]
    assert len(chunks) > 3, "the stream was buffered into one"


def test_keys_change_without_a_reload_and_several_have_names(gateway: Gateway) -> None:
    gateway.keys("# two of them", "", line("alice", KEY), line("bob", OTHER))
    assert [gateway.get("/v1/models", key).status_code for key in (KEY, OTHER)] == [200, 200]
    gateway.keys(line("bob", OTHER))
    assert [gateway.get("/v1/models", key).status_code for key in (KEY, OTHER)] == [401, 200]
    log = gateway.docker.docker("logs", gateway.container)
    assert '"key":"alice"' in log
    assert '"key":"bob"' in log


def test_a_broken_line_is_left_out_and_no_file_means_nobody(gateway: Gateway) -> None:
    gateway.keys("me with spaces", "short abc", line("me", KEY).upper(), line("bob", OTHER))
    assert [gateway.get("/v1/models", key).status_code for key in (KEY, OTHER)] == [401, 200]
    gateway.keys()
    assert gateway.get("/v1/models", OTHER).status_code == 401
    (gateway.home / "keys" / "keys").unlink()
    assert gateway.get("/v1/models", OTHER).status_code == 401
    assert gateway.get("/v1/models", "").status_code == 401


def test_a_large_body_is_refused_and_a_prompt_never_logged(gateway: Gateway) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    large = httpx.post(gateway.api + CHAT, content=b"x" * (17 << 20), headers=headers, timeout=60)
    assert large.status_code == 413
    prompt = {"model": "steady", "messages": [ASK]}
    httpx.post(gateway.api + CHAT, json=prompt, headers=headers, timeout=60)
    done = subprocess.run(
        ["docker", "logs", gateway.container],
        env=gateway.docker.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = done.stdout + done.stderr
    assert '"status":200' in said
    for secret in ("xyzzy", KEY, OTHER, "Bearer", hashlib.sha256(KEY.encode()).hexdigest()):
        assert secret not in said


def test_an_engine_that_is_away_is_said(
    images: Images, docker: DockerEngine, gateway: Gateway, home: Path
) -> None:
    alone = home / "alone"
    for name in ("run", "tls"):
        (alone / name).mkdir(parents=True)
    shutil.copytree(home / "keys", alone / "keys")
    tag = images.ref("gateway")["tag"]
    made = start(docker, tag, alone, gateway.engine, scheme="http")
    try:
        answer = made.get("/v1/models")
    finally:
        docker.docker("rm", "-f", made.container)
    assert answer.status_code == 503
    assert "engine does not answer" in answer.json()["error"]["message"]


def test_with_a_certificate_it_speaks_tls_and_only_that(
    images: Images, docker: DockerEngine, gateway: Gateway
) -> None:
    tls = gateway.home / "tls"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", tls / "tls.key", "-out", tls / "tls.crt"),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (tls / "tls.key").chmod(0o644)
    tag = images.ref("gateway")["tag"]
    made = start(
        docker, tag, gateway.home, gateway.engine, "/etc/gateway/https.conf", scheme="https"
    )
    try:
        trust = ssl.create_default_context(cafile=str(tls / "tls.crt"))
        headers = {"authorization": f"Bearer {KEY}"}
        answer = httpx.get(made.api + "/v1/models", headers=headers, verify=trust, timeout=30)
        assert answer.json()["data"][0]["id"] == "steady"
        plain = httpx.get(made.api.replace("https", "http") + "/v1/models", timeout=30)
        assert plain.status_code == 400
    finally:
        docker.docker("rm", "-f", made.container)
