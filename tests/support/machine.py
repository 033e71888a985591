"""A machine with too little of something: a small disk, a read-only one, a memory limit."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(at: Path, *options: str) -> Iterator[None]:
    """A small tmpfs at `at`; skips where nothing may be mounted."""
    at.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", *options, "none", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nobody can write there: by a mount where we are root (no mode stops root), else by mode."""
    if os.geteuid() != 0:
        directory.chmod(0o555)
        yield
        directory.chmod(0o755)
        return
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def fill(filler: Path) -> None:
    """Write until there is no room left, to the last byte."""
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for size in (1 << 16, 1 << 10, 1):
        with suppress(OSError):
            while os.write(descriptor, b"x" * size):
                pass
    os.close(descriptor)


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[list[str]]:
    """A command prefix that runs what follows in a control group (v1) with that limit."""
    group = Path(f"/sys/fs/cgroup/memory/dsctl-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        pytest.skip("may not make a control group (v1) with a memory limit here")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + 30
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        group.rmdir()
