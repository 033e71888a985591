"""The history file: good starts of the past, whole or absent, of a known version or left alone."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from dsctl.files import write_atomically
from dsctl.supervise.rules.history import HISTORY_VERSION, History, StartRecord


def read_history(path: Path) -> History:
    """The history; an empty one where there is none, or where it cannot be understood."""
    try:
        return History.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, ValueError):
        return History()


def record_start(path: Path, record: StartRecord) -> bool:
    """Add a good start. False, and nothing written, where a newer dsctl keeps this file.

    Raises:
        ConfigError: the file cannot be written.
    """
    if _version(path) > HISTORY_VERSION:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    history = read_history(path).with_start(record)
    write_atomically(path, history.model_dump_json(indent=1), mode=0o600)
    return True


def _version(path: Path) -> int:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, int) else 0
