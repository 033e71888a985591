"""Python interpreters on PATH that an engine environment can be made with."""

from __future__ import annotations

import platform
import re
import shutil
import sys

from dsctl.model.facts import Python


def pythons() -> tuple[Python, ...]:
    """Interpreters by name (`python3.12`), and the one that runs dsctl; nothing is executed."""
    found = {sys.executable: platform.python_version()}
    for minor in range(10, 16):
        path = shutil.which(f"python3.{minor}")
        if path:
            found.setdefault(path, f"3.{minor}")
    return tuple(Python(path=p, version=v) for p, v in sorted(found.items(), key=_order))


def _order(item: tuple[str, str]) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", item[1])[:2])
