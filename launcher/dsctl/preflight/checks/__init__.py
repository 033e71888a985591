"""The checks, one module per domain; `load()` registers them all."""

from __future__ import annotations

from importlib import import_module

_DOMAINS = (
    "memory",
    "system",
    "gpu",
    "pcie",
    "peers",
    "containers",
    "disk",
    "model",
    "packs",
    "images",
    "net",
    "profile",
)


def load() -> None:
    """Import every domain once; its checks register themselves."""
    for domain in _DOMAINS:
        import_module(f"{__name__}.{domain}")
