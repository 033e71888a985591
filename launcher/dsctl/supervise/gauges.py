"""The supervisor's own gauges in Prometheus' text form, on loopback or a Unix socket (opt-in)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsctl.errors import ConfigError
from dsctl.model.deployment import Deployment
from dsctl.model.event import Phase

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from dsctl.supervise.observer import Observer

_REMEDY = "give `--metrics 127.0.0.1:PORT` or `--metrics unix:PATH`"
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def where_of(text: str) -> tuple[str, int] | Path:
    """What `--metrics` names: an address on loopback, or the path of a Unix socket.

    Raises:
        ConfigError: neither.
    """
    if text.startswith("unix:") and len(text) > 5:
        return Path(text[5:]).absolute()
    host, _, port = text.rpartition(":")
    if host not in _LOOPBACK or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--metrics {text}: is no address on loopback", remedy=_REMEDY)
    return host.strip("[]"), int(port)


@dataclass(eq=False)
class Gauges:
    """What is exposed: the newest deployment and observer that the supervisor told."""

    deployment: Deployment | None = None
    observer: Observer | None = None

    def tick(self, deployment: Deployment, observer: Observer | None) -> None:
        """Called by the supervisor in every round."""
        self.deployment, self.observer = deployment, observer

    def text(self) -> bytes:
        """The exposition now."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector protocol."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, help_: str, values: dict[str, float], label: str = "") -> Metric:
            family = GaugeMetricFamily(f"dsctl_{name}", help_, labels=[label] if label else [])
            for key, value in values.items():
                family.add_metric([key] if label else [], value)
            return family

        used = time.process_time()
        yield CounterMetricFamily("dsctl_supervisor_cpu_seconds", "CPU time of dsctl", value=used)
        deployment = self.deployment
        if deployment is None:
            return
        restarts = float(deployment.restarts)
        yield CounterMetricFamily("dsctl_restarts", "Restarts by the supervisor", value=restarts)
        phases = {str(phase): float(phase is deployment.phase) for phase in Phase}
        yield gauge("phase", "1 for the phase it is in", phases, "phase")
        ready = {"": float(deployment.phase is Phase.READY)}
        yield gauge("ready", "1 while it serves and progresses", ready)
        yield gauge("since_timestamp_seconds", "Begin of the phase", {"": deployment.since})
        for name, help_, values, label in _seen(self.observer):
            yield gauge(name, help_, values, label)


def _seen(observer: Observer | None) -> Iterator[tuple[str, str, dict[str, float], str]]:
    """Gauges from the newest sample: name, help, values by label, the label's name."""
    last = observer.window.last if observer is not None else None
    if last is None:
        return
    yield "sample_timestamp_seconds", "When it last looked", {"": last.wall_t}, ""
    kinds = {
        kind: float(last.sum(f"{kind}_bytes") or 0)
        for kind in ("resident", "anonymous", "file", "locked", "swapped")
    }
    if last.processes is not None:
        yield "engine_memory_bytes", "Memory of the engine's processes", kinds, "kind"
    if last.host is not None:
        yield "host_available_bytes", "Available memory", {"": float(last.host.available_bytes)}, ""
    if last.checkpoint is not None:
        done, total = last.checkpoint.read_bytes, last.checkpoint.total_bytes
        yield "checkpoint_bytes", "Weights read", {"read": float(done), "total": float(total)}, "of"
    for part in ("memory_used_bytes", "utilization_percent", "power_w", "temperature_c"):
        values = {str(gpu.index): getattr(gpu, part) for gpu in last.gpus or ()}
        known = {index: float(value) for index, value in values.items() if value is not None}
        if known:
            yield f"gpu_{part}", f"GPU: {part}", known, "gpu"


@contextmanager
def serving(gauges: Gauges, where: str | None) -> Iterator[None]:
    """Serve `/metrics` in a thread; where that cannot be bound the supervisor goes on without.

    `where`: as `--metrics` names it; None: nothing is served.
    """
    if where is None:
        yield
        return
    place = where_of(where)
    server: ThreadingHTTPServer | None = None
    with suppress(OSError):
        server = _server(gauges, place)
    if server is None:
        yield
        return
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        if isinstance(place, Path):
            place.unlink(missing_ok=True)


class _UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        Path(str(self.server_address)).unlink(missing_ok=True)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "dsctl", 0

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = super().get_request()
        return connection, ("local", 0)


def _server(gauges: Gauges, place: tuple[str, int] | Path) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] == "/metrics"
            body = gauges.text() if found else b"dsctl: /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: nobody reads it."""

    if isinstance(place, Path):
        return _UnixServer(str(place), Handler)  # type: ignore[arg-type]
    return ThreadingHTTPServer(place, Handler)
