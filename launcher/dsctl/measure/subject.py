"""The thing under test: the running deployment, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsctl.client import Client, RequestError, Target
from dsctl.errors import ConfigError, NotGoodError
from dsctl.measure.conditions import Conditions
from dsctl.model.deployment import Deployment

_SECRET_FLAGS = re.compile(r"(?i)(api[-_]?key|[-_]token$|secret|passw)")


@dataclass(frozen=True)
class Subject:
    """A target, the model to ask it for, and what is known about it."""

    target: Target
    model: str
    conditions: Conditions
    questions: Path | None = None


def find_subject(
    endpoint: str | None, model: str | None, *, api_key_env: str | None = None
) -> Subject:
    """The endpoint given, or the running deployment when none is.

    Raises:
        ConfigError: a bad address, an unset key variable, or a model the server does not have.
        NotGoodError: no deployment runs.
        RequestError: nothing answers there.
    """
    key = _key(api_key_env)
    if endpoint is None:
        return _deployment(model, key)
    target = Target.parse(endpoint, key)
    with Client(target) as client:
        served = client.models()
        chosen = _choose(model, served, target)
        version, window = _about(client, chosen)
    return Subject(target, chosen, _conditions(chosen, target, version, window, None))


def _key(variable: str | None) -> str | None:
    import os

    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(
            f"--api-key-env {variable}: that variable is not set", remedy=f"export {variable}=…"
        )
    return value


def _deployment(model: str | None, key: str | None) -> Subject:
    from dsctl.engine.state import StateDirectory
    from dsctl.paths import user_paths

    deployment = StateDirectory(user_paths().deployment).read()
    if deployment is None or not deployment.is_up:
        raise NotGoodError(
            "no deployment runs here, and no --endpoint is given",
            remedy="`dsctl up --profile cpu-canary` first, or `--endpoint http://HOST:PORT/v1`",
        )
    target = Target.of(deployment.endpoint, key)
    with Client(target) as client:
        chosen = _choose(model or deployment.model, client.models(), target)
        version, window = _about(client, chosen)
    conditions = _conditions(chosen, target, version, window, deployment)
    return Subject(target, chosen, conditions, _questions(deployment.profile))


def _choose(model: str | None, served: tuple[str, ...], target: Target) -> str:
    if model is None:
        if not served:
            raise NotGoodError(f"{target} serves no model", remedy="see `dsctl status`")
        return served[0]
    if model not in served:
        raise ConfigError(
            f"--model {model}: {target} does not serve it", remedy=f"it serves {', '.join(served)}"
        )
    return model


def _about(client: Client, model: str) -> tuple[str | None, int | None]:
    """(engine version, window), where the server tells them."""
    version = window = None
    with suppress(RequestError, KeyError, TypeError):
        version = str(client.get_json("/version")["version"])
    with suppress(RequestError, KeyError, TypeError, ValueError):
        for entry in client.get_json("/v1/models")["data"]:
            if entry["id"] == model and entry.get("max_model_len"):
                window = int(entry["max_model_len"])
    return version, window


def _conditions(
    model: str,
    target: Target,
    version: str | None,
    window: int | None,
    deployment: Deployment | None,
) -> Conditions:
    from dsctl import __version__

    known: dict[str, Any] = {}
    if deployment is not None:
        known = {
            "profile": deployment.profile,
            "overrides": deployment.overrides,
            "engine": deployment.engine,
            "engine_argv": _without_paths(deployment.argv),
            "image_digest": deployment.env.get("DSCTL_IMAGE_DIGEST"),
            "facts": _facts(),
        }
    return Conditions(
        model=model,
        endpoint_kind="unix" if target.uds else "tcp",
        dsctl_version=__version__,
        engine_version=version,
        max_model_len=window,
        **known,
    )


def _without_paths(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The engine's command without the machine's paths and without secrets."""
    kept, hide = [], False
    for part in argv:
        flag, equals, value = part.partition("=")
        if hide or (equals and _SECRET_FLAGS.search(flag)):
            kept.append("<secret>" if hide else f"{flag}=<secret>")
        elif part.startswith("/"):
            kept.append(f"<path>/{Path(part).name}")
        elif equals and value.startswith("/"):
            kept.append(f"{flag}=<path>/{Path(value).name}")
        else:
            kept.append(part)
        hide = part.startswith("--") and not equals and bool(_SECRET_FLAGS.search(part))
    return tuple(kept)


def _facts() -> dict[str, Any] | None:
    """The machine's facts, redacted; None when they cannot be had."""
    from dsctl.errors import DsctlError
    from dsctl.host.collect import collect
    from dsctl.host.redact import redact

    try:
        return redact(collect()).model_dump(mode="json")
    except (DsctlError, OSError):
        return None


def _questions(profile: str) -> Path | None:
    from dsctl.errors import DsctlError
    from dsctl.paths import shipped
    from dsctl.planning.catalog import load_profile

    try:
        questions = load_profile(profile).model.questions
        return shipped(*Path(questions).parts) if questions else None
    except DsctlError:
        return None
