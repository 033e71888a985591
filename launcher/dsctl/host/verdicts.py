"""Verdicts on peer access that vLLM leaves on disk, keyed by device numbers and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsctl.host.root import AbsentError
from dsctl.model.facts import P2pVerdict

_NAME = "gpu_p2p_access_cache_for_"


def find_verdicts(directories: Iterable[Path]) -> list[dict[str, Any]]:
    """Verdict files in vLLM cache directories, in the form of a recorded `verdicts.json`."""
    found = []
    for directory in directories:
        for path in sorted(directory.glob(f"{_NAME}*.json")):
            try:
                content, modified = json.loads(path.read_text()), path.stat().st_mtime
            except (OSError, ValueError):
                continue
            found.append({"path": str(path), "modified_at": modified, "content": content})
    return found


def parse_verdicts(answer: Any) -> tuple[P2pVerdict, ...]:
    """The value of a `verdicts.json`.

    Raises:
        AbsentError: it does not have the promised form.
    """
    try:
        return tuple(
            P2pVerdict(
                path=item["path"],
                modified_at_s=item["modified_at"],
                devices=_devices(item["path"]),
                grants=any(v for k, v in item["content"].items() if _between_two(k)),
            )
            for item in answer
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AbsentError(f"verdicts.json is not in the promised form: {error}") from None


def _devices(path: str) -> str:
    name = Path(path).stem
    return name[len(_NAME) :] if name.startswith(_NAME) else name


def _between_two(key: str) -> bool:
    match = re.fullmatch(r"(\d+)->(\d+)", key)
    return match is not None and match[1] != match[2]
