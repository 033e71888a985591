"""Facts without what names a person or a machine: safe to paste into a public issue."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from dsctl.model.facts import Facts

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I)
_HOME = re.compile(r"(?<![\w/])(/home/|/Users/|/mnt/\w/Users/|/run/media/)([^/\s,\"']+)")
_SECRET = re.compile(r"(?i)\b(\S*(?:token|secret|passw\w*|api_?key|auth))=(\S+)")
_BUILDER = re.compile(r"\(([\w.+-]+)@([\w.-]+)\)")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_NET = re.compile(r"\b(ip|BOOTIF|hostname|systemd\.hostname)=(\S+)")
#: A registry that is nobody's public one, before the image's name.
_REGISTRY = re.compile(
    r"^(?!docker\.io/|ghcr\.io/|nvcr\.io/|quay\.io/)(?:[\w-]+\.[\w.-]+|localhost)(?::\d+)?/"
)
#: The boot id is random and says nothing about the machine; without it a reboot cannot be seen.
_KEPT = frozenset({"boot_id"})


def redact(facts: Facts) -> Facts:
    """The facts with host names, user names, serial numbers and secrets replaced.

    Equal things stay equal (a GPU's id becomes a short digest of itself), so that the checks find
    the same; paths keep their shape.
    """
    values = facts.model_dump()
    cleaned = {key: _clean(value, key) for key, value in values.items()}
    return Facts.model_validate({**cleaned, "redacted": True})


def _clean(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_clean(v, key) for v in value)
    if not isinstance(value, str) or key in _KEPT:
        return value
    if key == "uuid":
        return f"GPU-{hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return redact_text(_REGISTRY.sub("<registry>/", value) if key == "images" else value)


def redact_text(text: str) -> str:
    """One text, as `redact`."""
    text = _SECRET.sub(r"\1=<secret>", text)
    text = _NET.sub(r"\1=<host>", text)
    text = _BUILDER.sub("(<builder>)", text)
    text = _MAC.sub("<mac>", text)
    text = _UUID.sub("<uuid>", text)
    return _HOME.sub(r"\1user", text)
