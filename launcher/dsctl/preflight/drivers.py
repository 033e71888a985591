"""Notes on drivers, as data."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

from dsctl.model.base import Value


class DriverNote(Value):
    """What people met with one driver, and for whom it matters."""

    version: str
    matters: Literal["any", "pinned", "dual"]
    what: str


class Drivers(Value):
    """The oldest driver that serves, and the notes."""

    oldest: str
    oldest_why: str
    notes: tuple[DriverNote, ...]


@cache
def read_drivers() -> Drivers:
    """The notes that ship with dsctl."""
    import yaml

    return Drivers.model_validate(
        yaml.safe_load(Path(__file__).with_name("drivers.yaml").read_text())
    )


def version_key(version: str) -> tuple[int, ...]:
    """A driver version that compares by number: 595.58.03 is 595, 58, 3."""
    return tuple(int(n) for n in re.findall(r"\d+", version))
