"""Layers by number, written like `0-2,5`. Pure."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?$")


def parse_layers(text: str) -> frozenset[int]:
    """The layers that a text names; none for an empty one.

    Raises:
        ValueError: quotes what is not a number or a range.
    """
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        match = _RANGE.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"{part!r} is not a layer or a range of layers; write it like 0-2,5")
        found.update(range(first, last + 1))
    return frozenset(found)
