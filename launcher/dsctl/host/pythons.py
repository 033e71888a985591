"""Python interpreters that an engine environment can be made with, and compilers it finds."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from dsctl.model.facts import Python
from dsctl.paths import PROGRAMS


def pythons() -> tuple[Python, ...]:
    """Interpreters by name (`python3.12`), and the one that runs dsctl; nothing is executed."""
    found = {sys.executable: platform.python_version()}
    for minor in range(10, 16):
        path = shutil.which(f"python3.{minor}")
        if path:
            found.setdefault(path, f"3.{minor}")
    return tuple(
        Python(path=p, version=v, headers=_headers(Path(p), v))
        for p, v in sorted(found.items(), key=_order)
    )


def compilers() -> tuple[str, ...]:
    """Which of gcc and g++ there are where a process engine looks for programs."""
    return tuple(n for n in ("gcc", "g++") if shutil.which(n, path=os.pathsep.join(PROGRAMS)))


def _headers(python: Path, version: str) -> bool | None:
    """Whether Python.h is there; None for a script in the interpreter's place (pyenv has such)."""
    if str(python) == sys.executable:  # Debian's own scheme names a place below /usr/local
        return Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file()
    try:
        program = python.resolve()
        with program.open("rb") as file:
            if file.read(2) == b"#!":
                return None
    except OSError:
        return None
    return (program.parent.parent / "include" / f"python{version}" / "Python.h").is_file()


def _order(item: tuple[str, str]) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", item[1])[:2])
