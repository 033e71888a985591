"""vLLM's `/metrics`: the few numbers that say whether the engine advances."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable

from dsctl.model.endpoint import Endpoint
from dsctl.model.sample import EngineMetrics
from dsctl.supervise.samplers.reader import Unreadable

#: Field -> name in vLLM 0.32 (v1/metrics/loggers.py, v1/spec_decode/metrics.py). Every series of a
#: name is added up: one per engine where several share a server.
_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "iterations": "vllm:iteration_tokens_total_count",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
}
_FIELDS = {name: field for field, name in _NAMES.items()}


def parse_metrics(lines: Iterable[str]) -> EngineMetrics | None:
    """The numbers in a Prometheus text; None where it is not a vLLM engine's."""
    sums: dict[str, float] = {}
    worst_kv = 0.0
    for line in lines:
        if not line.startswith("vllm:"):
            continue
        head, _, value = line.rpartition(" ")
        field = _FIELDS.get(head.partition("{")[0])
        if field is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        sums[field] = sums.get(field, 0.0) + number
        worst_kv = max(worst_kv, number) if field == "kv_usage" else worst_kv
    if "running" not in sums:
        return None
    if "kv_usage" in sums:
        sums["kv_usage"] = worst_kv
    return EngineMetrics(running=sums.pop("running"), waiting=sums.pop("waiting", 0.0), **sums)


class MetricsReader:
    """Fetches `/metrics`. `http_ok`: whether the last request was
    answered as a living HTTP server does; None before the first."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = 10.0) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.http_ok: bool | None = None

    def __call__(self) -> EngineMetrics:
        """The numbers now.

        Raises:
            Unreadable: no answer, or not vLLM's.
        """
        try:
            status, body = self._get()
        except (http.client.HTTPException, OSError) as error:
            self.http_ok = False
            raise Unreadable(f"/metrics: {error or type(error).__name__}") from None
        self.http_ok = status < 500
        if status != 200:
            raise Unreadable(f"/metrics: HTTP {status}")
        found = parse_metrics(body.decode(errors="replace").split("\n"))
        if found is None:
            raise Unreadable("/metrics holds no numbers of a vLLM engine")
        return found

    def _get(self) -> tuple[int, bytes]:
        # A connection each time: a kept one is closed by the server between two looks.
        connection = _connection(self._endpoint, self._timeout_s)
        try:
            connection.request("GET", "/metrics", headers={"Connection": "close"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(endpoint: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if endpoint.uds is not None:
        return _UnixConnection(endpoint.uds, timeout_s)
    return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
