"""Reads the engine's own counters (Prometheus text). Pure parsing; one fetch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsctl.bench.schema import DraftStats
from dsctl.client import Client, RequestError

#: Names of vLLM; `_total` is what its Prometheus client appends.
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Counters = Mapping[tuple[str, str], float]


def read_counters(text: str) -> dict[tuple[str, str], float]:
    """(name without `_total`, position label or "") -> value, summed over engines."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or line.startswith("#"):
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        position = dict(_LABEL.findall(labels or "")).get("position", "")
        key = (name.removesuffix("_total"), position)
        found[key] = found.get(key, 0.0) + number
    return found


def draft_stats(before: Counters, after: Counters) -> DraftStats | None:
    """Draft statistics between two readings; None without drafts."""

    def delta(name: str, position: str = "") -> float:
        return after.get((name, position), 0.0) - before.get((name, position), 0.0)

    drafts, tokens, accepted = delta(_DRAFTS), delta(_DRAFT_TOKENS), delta(_ACCEPTED)
    if drafts <= 0:
        return None
    positions = sorted((p for name, p in after if name == _PER_POSITION and p), key=int)
    return DraftStats(
        drafts=drafts,
        draft_tokens=tokens,
        accepted=accepted,
        acceptance_length=1 + accepted / drafts,
        acceptance_rate=accepted / tokens if tokens else 0.0,
        per_position=tuple(delta(_PER_POSITION, p) / drafts for p in positions),
    )


def fetch_counters(client: Client) -> dict[tuple[str, str], float] | None:
    """The counters now; None when the server has no `/metrics`."""
    try:
        with Client(client.target.monitor) as monitor:
            return read_counters(monitor.get_text("/metrics"))
    except RequestError:
        return None
