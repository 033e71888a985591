"""Promises of the gateway, tried from the host through its port."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsctl.audit.promise import Promise

if TYPE_CHECKING:
    import httpx

#: What vLLM serves beside the API, and must not be reachable.
ADMIN = (
    "/docs",
    "/openapi.json",
    "/metrics",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/sleep",
    "/wake_up",
    "/v1/load_lora_adapter",
    "/server_info",
    "/scale_elastic_ep",
    "/start_profile",
    "/update_weights",
    "/tokenizer_info",
)
_TIMEOUT_S = 20.0


def tried_at(base_url: str, key: str | None, model: str | None) -> list[Promise]:
    """Ask without a key, with a wrong one, with ours, and for what nobody is to reach."""
    import httpx

    promises = []
    with httpx.Client(base_url=base_url, timeout=_TIMEOUT_S, trust_env=False, verify=False) as http:
        for id_, promise, headers in _STRANGERS:
            status, _ = _status(http, "GET", "/v1/models", headers)
            promises.append(
                _promise(id_, promise, f"GET /v1/models {_said(headers)}", status == 401, status)
            )
        if key is None:
            return promises
        good = {"Authorization": f"Bearer {key}"}
        status, text = _status(http, "GET", "/v1/models", good)
        served = status == 200 and (model is None or model in text)
        promises.append(
            _promise("gate.key", "it opens with our key", "GET /v1/models, key", served, status)
        )
        reached = list(_reached(http, good))
        promises.append(
            Promise(
                id="gate.admin",
                container="gateway",
                promise="what administers the engine is not reachable",
                how=f"asked for {len(ADMIN)} paths with our key, GET and POST",
                held=not reached,
                evidence=", ".join(reached) or "each refused",
            )
        )
    return promises


_STRANGERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("gate.no-key", "nobody asks without a key", {}),
    ("gate.wrong-key", "nobody asks with a wrong key", {"Authorization": "Bearer sk-" + "x" * 43}),
    ("gate.empty-key", "an empty key opens nothing", {"Authorization": "Bearer"}),
)


def _reached(http: httpx.Client, headers: dict[str, str]) -> Iterable[str]:
    for path in ADMIN:
        for method in ("GET", "POST"):
            status, _ = _status(http, method, path, headers)
            if status not in (401, 403, 404, 405):
                yield f"{method} {path}: {status}"


def _status(
    http: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> tuple[int | str, str]:
    import httpx as library

    try:
        answer = http.request(method, path, headers=headers)
    except library.HTTPError as error:
        return type(error).__name__, ""
    return answer.status_code, answer.text


def _said(headers: dict[str, str]) -> str:
    return "with a key that is none" if headers else "without a key"


def _promise(id_: str, promise: str, how: str, held: bool, status: int | str) -> Promise:
    return Promise(
        id=id_, container="gateway", promise=promise, how=how, held=held, evidence=f"{status}"
    )
