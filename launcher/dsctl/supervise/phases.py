"""Reads the phases of a start from the engine's log. Pure: lines in, what they mean out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsctl.model.event import Phase


@dataclass(frozen=True)
class Sign:
    """A log line's meaning: the phase it opens (None: stays) and what to tell people."""

    phase: Phase | None
    event: str
    message: str


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    phase: Phase | None
    event: str
    message: str


def _rule(pattern: str, phase: Phase | None, event: str, message: str) -> _Rule:
    return _Rule(re.compile(pattern), phase, event, message)


#: Spellings of vLLM 0.32 (and the older ones still seen in images). Order does not matter: a phase
#: never goes back.
_RULES = (
    _rule(r"vLLM API server version (?P<v>\S+)", None, "engine-version", "vLLM {v}"),
    _rule(r"Initializing a V1 LLM engine", None, "engine-init", "engine core starts"),
    _rule(
        r"Starting to load model (?P<m>\S+?)(\.\.\.)?$",
        Phase.LOADING,
        "load-start",
        "reads {m}",
    ),
    _rule(
        r"Loading safetensors checkpoint shards:\s+(?P<p>\d+)% Completed \| (?P<d>\d+)/(?P<n>\d+)",
        Phase.LOADING,
        "load-progress",
        "{d} of {n} shards",
    ),
    _rule(r"Loading weights took (?P<s>[\d.]+) sec", Phase.LOADING, "loaded", "read in {s} s"),
    _rule(
        r"Model loading took (?P<g>[\d.]+) Gi?B(?: memory)? and (?P<s>[\d.]+) sec",
        Phase.ALLOCATING,
        "model-loaded",
        "model takes {g} GiB, loaded in {s} s",
    ),
    _rule(r"KV cache size: (?P<t>[\d,]+) tokens", Phase.ALLOCATING, "kv-cache", "KV: {t} tokens"),
    _rule(r"Maximum concurrency for .*: (?P<x>[\d.]+)x", None, "concurrency", "{x} full windows"),
    _rule(
        r"Compiling a graph|Starting to compile|torch\.compile takes|Dynamo bytecode transform",
        Phase.COMPILING,
        "compile",
        "compiles",
    ),
    _rule(r"[Cc]apturing CUDA graphs", Phase.COMPILING, "capture", "captures CUDA graphs"),
    _rule(r"Graph capturing finished in (?P<s>\d+) sec", Phase.COMPILING, "captured", "in {s} s"),
    _rule(
        r"init engine \(profile, create kv cache, warmup model\) took (?P<s>[\d.]+)",
        Phase.WARMING,
        "engine-ready",
        "engine initialised in {s} s",
    ),
    _rule(r"Started server process", Phase.WARMING, "http", "HTTP server starts"),
    _rule(r"Application startup complete", Phase.WARMING, "http-up", "HTTP server is up"),
)

#: A line without any of these means nothing; most lines are told apart by this one look.
_TELLING = re.compile(
    "|".join(
        (
            r"vLLM API server version|Initializing a V1|Starting to (?:load|compile)",
            r"Loading (?:safe|weights)|Model loading took|KV cache size|Maximum concurrency",
            r"Compiling a graph|torch\.compile takes|Dynamo bytecode|apturing|init engine",
            r"Started server|Application startup",
        )
    )
)
#: No sign stands further right than that.
_LOOK_AT = 4096

_ORDER = (
    Phase.STARTING,
    Phase.LOADING,
    Phase.ALLOCATING,
    Phase.COMPILING,
    Phase.WARMING,
)


def read_line(line: str) -> Sign | None:
    """What one log line means for the start, or None."""
    line = line[:_LOOK_AT]
    if not _TELLING.search(line):
        return None
    for rule in _RULES:
        match = rule.pattern.search(line)
        if match is not None:
            values = {k: v for k, v in match.groupdict().items() if v is not None}
            return Sign(rule.phase, rule.event, rule.message.format(**values))
    return None


def advance(now: Phase, sign: Sign) -> Phase:
    """The phase after a sign: later phases win, a late line never sets a start back."""
    if sign.phase is None or now not in _ORDER:
        return now
    return max(now, sign.phase, key=_ORDER.index)
