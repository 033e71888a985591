"""Names the cause of a failure from logs. Causes are data (`causes/*.yaml`), the matcher is code.

diagnose(lines)            one log: engine, kernel, container inspect, or all mixed
diagnose_sources({...})    several logs by name, each with its own line numbers
Matcher().feed(line)       incrementally; `.result()` at any time
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dsctl.diagnose.matcher import Matcher
from dsctl.model.diagnosis import Diagnosis

__all__ = ["Matcher", "diagnose", "diagnose_sources"]


def diagnose(lines: Iterable[str]) -> Diagnosis:
    """Name the cause in one log. Line numbers count from 1."""
    matcher = Matcher()
    for line in lines:
        matcher.feed(line)
    return matcher.result()


def diagnose_sources(sources: Mapping[str, Any]) -> Diagnosis:
    """Name the cause from several logs, e.g. `{"engine": …, "kernel": …, "container": …}`.

    A value is lines, one text, or what `docker inspect` answered (a dict, or a list of dicts).
    Evidence names its source. The order of the sources does not change the cause.
    """
    matcher = Matcher()
    for source in sorted(sources):
        for line in _lines_of(sources[source]):
            matcher.feed(line, source)
    return matcher.result()


def _lines_of(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return value.split("\n")
    if isinstance(value, Mapping):  # numbered like the list that `docker inspect` prints
        return json.dumps([value], indent=4).splitlines()
    lines = list(value) if isinstance(value, tuple) else value
    if isinstance(lines, list) and lines and isinstance(lines[0], Mapping):
        return json.dumps(lines, indent=4).splitlines()
    return iter(lines)
