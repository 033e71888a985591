"""Text to measure with. Diverse: prose in ten languages, technical text, code, tables, logs, JSON.

Drafts and caches are flattered by text that repeats. So the written passages appear once in each
pass, in a new order, between code, tables and records whose names and numbers are drawn anew: the
stream never repeats a long passage closely and is the same for the same seed on every machine.
`filler` is the opposite on purpose: it shows how much a benchmark on repetitive text flatters.
All passages were written for dsctl.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal

Corpus = Literal["diverse", "filler"]

_NAMES = [
    "anchor",
    "basin",
    "carbon",
    "delta",
    "ember",
    "fjord",
    "grain",
    "hinge",
    "inlet",
    "joist",
    "kelp",
    "lumen",
    "marsh",
    "nickel",
    "orbit",
    "pivot",
    "quartz",
    "ridge",
    "sluice",
    "timber",
    "umbra",
    "valve",
    "wharf",
    "yarrow",
    "zephyr",
    "bobbin",
    "cinder",
    "dowel",
    "estuary",
]
_TOWNS = ("Gdańsk", "Porto", "Kyōto", "Łódź", "Oulu")
_FILLER = "The quick brown fox jumps over the lazy dog. "


def corpus_text(kind: Corpus, characters: int, seed: int = 0) -> str:
    """`characters` of text (about: it ends at a paragraph, or a sentence of the filler)."""
    if kind == "filler":
        return _FILLER * max(1, characters // len(_FILLER))
    return diverse_text(characters, seed=seed)


def diverse_text(characters: int, *, seed: int = 0) -> str:
    """At most `characters` of diverse text (but at least one paragraph), same for the same seed."""
    parts: list[str] = []
    size = 0
    for paragraph in paragraphs(seed):
        if parts and size + len(paragraph) + 2 > characters:
            break
        parts.append(paragraph)
        size += len(paragraph) + 2
    return "\n\n".join(parts)


def paragraphs(seed: int) -> Iterator[str]:
    """An endless stream of paragraphs."""
    rng = random.Random(seed)
    while True:
        written = list(_passages())
        rng.shuffle(written)
        for passage in written:
            yield passage
            yield rng.choice(_MAKERS)(rng)


@cache
def _passages() -> tuple[str, ...]:
    folder = resources.files("dsctl.bench") / "texts"
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("prose.txt", "technical.txt")]
    return tuple(p.strip() for text in texts for p in text.split("\n\n") if p.strip())


def _name(rng: random.Random) -> str:
    return rng.choice(_NAMES)


def _python(rng: random.Random) -> str:
    a, b, c = (_name(rng) for _ in range(3))
    k, m = rng.randrange(2, 97), rng.randrange(100, 9999)
    return (
        f"def {a}_{b}({c}: list[int], limit: int = {m}) -> dict[str, int]:\n"
        f'    """Counts the {c} values of each {b} below the limit."""\n'
        f"    found: dict[str, int] = {{}}\n"
        f"    for index, value in enumerate({c}):\n"
        f"        if value % {k} == {rng.randrange(k)} and value < limit:\n"
        f'            found[f"{b}-{{index // {rng.randrange(3, 40)}}}"] = value\n'
        f"    return found"
    )


def _rust(rng: random.Random) -> str:
    a, b = _name(rng), _name(rng)
    return (
        f"impl {a.title()} {{\n"
        f"    pub fn {b}(&mut self, at: usize) -> Option<u{rng.choice((8, 16, 32, 64))}> {{\n"
        f"        let slot = self.slots.get_mut(at.wrapping_mul({rng.randrange(3, 999)}))?;\n"
        f"        slot.age = slot.age.saturating_add({rng.randrange(1, 9)});\n"
        f"        (slot.age > {rng.randrange(10, 500)}).then(|| slot.value)\n"
        f"    }}\n}}"
    )


def _sql(rng: random.Random) -> str:
    a, b, c = (_name(rng) for _ in range(3))
    return (
        f"SELECT {a}.id, count(*) AS {b}s, sum({b}.amount_{c}) AS total\n"
        f"FROM {a} LEFT JOIN {b} ON {b}.{a}_id = {a}.id\n"
        f"WHERE {a}.opened_on >= DATE '20{rng.randrange(10, 27)}-{rng.randrange(1, 13):02d}-01'\n"
        f"GROUP BY {a}.id HAVING sum({b}.amount_{c}) > {rng.randrange(100, 99999)}\n"
        f"ORDER BY total DESC LIMIT {rng.randrange(5, 200)};"
    )


def _table(rng: random.Random) -> str:
    rows = ["| item | count | mass kg | loss % |", "| --- | ---: | ---: | ---: |"]
    for _ in range(rng.randrange(4, 9)):
        rows.append(
            f"| {_name(rng)} {_name(rng)} | {rng.randrange(1, 9000)} | "
            f"{rng.uniform(0.1, 900):.2f} | {rng.uniform(0, 30):.1f} |"
        )
    return "\n".join(rows)


def _log(rng: random.Random) -> str:
    second = rng.randrange(80000)
    rows = []
    for _ in range(rng.randrange(4, 9)):
        second += rng.randrange(1, 90)
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        level = rng.choice(("INFO", "WARN", "DEBUG", "ERROR"))
        rows.append(
            f"{clock}.{rng.randrange(1000):03d} {level:5} {_name(rng)}.{_name(rng)}"
            f"[{rng.randrange(65536):04x}] took {rng.randrange(1, 4000)} ms, "
            f"{rng.randrange(1, 64)} of {rng.randrange(64, 256)} {_name(rng)} slots busy"
        )
    return "\n".join(rows)


def _json(rng: random.Random) -> str:
    document = {
        "id": f"{rng.randrange(16**8):08x}",
        _name(rng): {"level": rng.randrange(100), "tags": rng.sample(_NAMES, 3)},
        "readings": [round(rng.gauss(20, 6), 3) for _ in range(rng.randrange(3, 9))],
        "ok": rng.random() < 0.5,
    }
    return json.dumps(document, indent=2)


def _recipe(rng: random.Random) -> str:
    a, b, c = rng.sample(_NAMES, 3)
    return (
        f"Order {rng.randrange(1000, 99999)}: the {a} for hall {rng.randrange(1, 40)} waits for "
        f"{rng.randrange(2, 60)} {b}s from {rng.choice(_TOWNS)}"
        f"; until then the {c} runs at {rng.randrange(20, 95)} % and drops "
        f"{rng.uniform(0.1, 9):.1f} bar overnight. Ask again on day {rng.randrange(1, 31)}."
    )


_MAKERS = (_python, _rust, _sql, _table, _log, _json, _recipe)
