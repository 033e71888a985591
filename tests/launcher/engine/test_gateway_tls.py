"""TLS of the gateway: what is handed to it, and what our own client trusts."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dsctl.client import Client, RequestError, Target
from dsctl.client.fast import connect
from dsctl.engine.containers import ensure_access, guarded, publish_certificate
from dsctl.errors import ConfigError
from dsctl.model.endpoint import Endpoint
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile


def make_certificate(directory: Path, name: str) -> Path:
    """A self-signed certificate for a name that is not this machine's."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-keyout", str(directory / "tls.key"), "-out", str(directory / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture
def given(tmp_path: Path) -> Path:
    return make_certificate(tmp_path / "given", "llm.example.org")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Paths(*(tmp_path / name for name in ("data", "state", "cache", "config")))


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "m"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def served(given: Path) -> Iterator[int]:
    """A server with the given certificate; its port."""
    server = HTTPServer(("127.0.0.1", 0), _Models)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given / "tls.crt", given / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_gateway_may_read_its_certificate_and_nobody_else_on_the_host_may(
    given: Path, paths: Paths
) -> None:
    profile = load_profile("cpu-canary", {"tls_dir": str(given)})
    ensure_access(profile, paths)
    assert (paths.gateway_tls / "tls.key").read_text() == (given / "tls.key").read_text()
    assert stat.S_IMODE((paths.gateway_tls / "tls.key").stat().st_mode) == 0o644
    assert stat.S_IMODE(paths.gateway_tls.parent.stat().st_mode) == 0o700
    endpoint = guarded(Endpoint(port=1), profile, paths)
    assert endpoint.base_url == "https://127.0.0.1:1"


def test_our_client_trusts_the_deployments_certificate_and_no_other(
    served: int, given: Path, tmp_path: Path
) -> None:
    ours = Endpoint(port=served, certificate=str(given / "tls.crt"))
    with Client(Target.of(ours)) as client:
        assert client.models() == ("m",)
    connect(Target.of(ours)).close()
    other = make_certificate(tmp_path / "other", "llm.example.org")
    for trusted in (
        Target.of(Endpoint(port=served, certificate=str(other / "tls.crt"))),
        Target.parse(f"https://127.0.0.1:{served}"),
    ):
        with Client(trusted) as client, pytest.raises(RequestError):
            client.models()
        with pytest.raises(RequestError):
            connect(trusted)


def test_half_a_certificate_is_refused_by_name(given: Path, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other", "x")
    shutil.copy(other / "tls.key", given / "tls.key")
    with pytest.raises(ConfigError, match="no pair"):
        publish_certificate(given, tmp_path / "target")
    (given / "tls.key").unlink()
    with pytest.raises(ConfigError, match=r"tls\.key is missing"):
        publish_certificate(given, tmp_path / "target")
    assert not (tmp_path / "target").exists()
