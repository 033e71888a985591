"""Takes secrets out of text that will be shown or pasted somewhere."""

from __future__ import annotations

import re

HIDDEN = "[redacted]"

_SECRET_NAME = (
    r"(?:[A-Za-z0-9_.-]*(?:api[_-]?key|apikey|token|secret|passw(?:or)?d|credential)s?"
    r"|authorization)"
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+(?!\[)[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"), HIDDEN),
    (re.compile(r"\b(?:hf|ghp|gho|ghs|glpat|nvapi|xox[abp])[_-][A-Za-z0-9_-]{8,}"), HIDDEN),
    (re.compile(r"\bAKIA[0-9A-Z]{12,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), HIDDEN),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), HIDDEN),
    (
        re.compile(
            rf"(?i)(--{_SECRET_NAME}[ =]|\b{_SECRET_NAME}[\"']?\s*[=:]\s*)"
            r"(?!\[redacted)([\[(]\s*)?([\"']?)(?!None\b|null\b|True\b|False\b|\d+\b)"
            r"[^\s\"',)\]}]{3,}\3"
        ),
        rf"\1\2{HIDDEN}",
    ),
)


def redact(text: str) -> str:
    """`text` with API keys, bearer tokens, passwords and credentials in addresses replaced."""
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    return text
