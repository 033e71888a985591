"""Takes out of any text what names a machine or a person: hosts, addresses, paths, users, keys."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 <secret>"),
    (re.compile(r"\b(?:sk|pk|hf|ghp|gho|glpat|nvapi)[-_][A-Za-z0-9_-]{8,}"), "<secret>"),
    (
        re.compile(r"(?i)\b([\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d))(\s*[=:]\s*)\S{6,}"),
        r"\1\2<secret>",
    ),
    (
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I),
        "<uuid>",
    ),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I), "<mac>"),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+@"), ""),
    (re.compile(r"(?<![\d.])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"), "<address>"),
    (re.compile(r"unix:/[^\s\"'<>]+"), "unix:<socket>"),
    (re.compile(r"(?<![\w.:/<>~-])~?(/[\w.@+-]+){2,}/?"), ""),  # replaced by a function, see below
)
#: Paths of every Linux machine that name nobody, and paths of HTTP.
_KEPT = re.compile(r"^/(v1|metrics|health|tokenize|proc|sys|dev|etc/os-release)(/|$)")


class Redactor:
    """Replaces identifiers of this machine and of its user, wherever they stand."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        own = _own_names() if names is None else names
        self._names = [
            re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.I)
            for name in sorted({n for n in own if len(n) > 2}, key=len, reverse=True)
        ]

    def __call__(self, text: str) -> str:
        *rules, (paths, _) = _RULES
        for pattern, replacement in rules:
            text = pattern.sub(replacement, text)
        text = paths.sub(_shorten, text)
        for name in self._names:
            text = name.sub("<host>", text)
        return text


def _shorten(match: re.Match[str]) -> str:
    path = match.group()
    return path if _KEPT.match(path) else f"<path>/{Path(path).name}"


def _own_names() -> list[str]:
    names = [socket.gethostname(), socket.getfqdn()]
    with suppress(KeyError, OSError):  # no such user (a container with a bare uid)
        names.append(getpass.getuser())
    return [name for name in names if name not in ("root", "localhost", "user", "dsctl")]
