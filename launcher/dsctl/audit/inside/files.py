"""What may be written or run, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial

from dsctl.audit.inside.tries import attempt, judge, name_of, tell


def files(writable: list[str], read_only: list[str]) -> None:
    """What may be written, and nothing else."""
    root = os.statvfs("/")
    outcomes = {
        d: attempt(partial(write_in, d))
        for d in ("/", "/usr", "/usr/local", "/etc", "/opt", "/var", "/home", "/root", "/srv")
        if os.path.isdir(d)
    }
    bad = [d for d, code in outcomes.items() if code == 0]
    locked = bool(root.f_flag & os.ST_RDONLY)
    tell(
        "fs.root",
        "the root file system cannot be written",
        "looked at its mount, wrote in " + " ".join(outcomes),
        locked and not bad,
        f"written: {' '.join(bad)}"
        if bad
        else ("mounted read-only" if locked else "mounted writable"),
    )
    for directory in read_only:
        flags = os.statvfs(directory).f_flag
        outcome = attempt(partial(write_in, directory))
        first = next((e.path for e in os.scandir(directory) if e.is_file()), None)
        change = attempt(partial(open_to_write, first)) if first else errno.EROFS
        tell(
            f"fs{directory.replace('/', '.')}",
            f"{directory} cannot be written",
            "looked at its mount, wrote a file, opened one to write",
            bool(flags & os.ST_RDONLY) and outcome != 0 and change != 0,
            f"new file: {name_of(outcome) if outcome else 'worked'}, "
            f"old file: {name_of(change) if change else 'worked'}",
        )
    allowed = (*writable, "/tmp", "/dev", "/proc", "/sys")
    extra = [
        m for m, rw in mounts() if rw and not any(m == a or m.startswith(a + "/") for a in allowed)
    ]
    tell(
        "fs.mounts",
        "nothing else is mounted writable",
        "read the list of mounts",
        not extra,
        " ".join(extra) or "only " + " ".join(writable) + " and memory",
    )
    programs = {d: attempt(partial(run_in, d)) for d in ("/tmp", "/dev/shm")}
    judge(
        "fs.noexec",
        "nothing runs from scratch memory",
        "wrote a program there and ran it",
        programs,
        {errno.EACCES, errno.EPERM, errno.EROFS},
    )
    paths = (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent",
    )
    judge(
        "fs.kernel",
        "no kernel setting can be written",
        "opened switches of the kernel to write",
        {p: attempt(partial(open_to_write, p)) for p in paths},
        {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT},
    )


def write_in(directory: str) -> None:
    """Make a file and remove it."""
    path = os.path.join(directory, f".dsctl-audit-{os.getpid()}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)


def run_in(directory: str) -> None:
    """Make a program, run it, remove it."""
    path = os.path.join(directory, f".dsctl-audit-{os.getpid()}")
    with open(path, "w") as file:
        file.write("#!/bin/true\n")
    os.chmod(path, 0o700)
    try:
        if os.fork() == 0:
            code = attempt(lambda: os.execv(path, [path]))
            os._exit(code if code < 256 else 255)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        if status in (errno.EACCES, errno.EPERM):
            raise OSError(status, "not run")
    finally:
        os.unlink(path)


def mounts() -> Iterator[tuple[str, bool]]:
    """(mount point, writable) of every mount."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            point, options = fields[4], fields[5].split(",")
            super_options = line.rpartition(" - ")[2].split()[-1].split(",")
            yield point, "rw" in options and "ro" not in super_options


def open_to_write(path: str) -> None:
    """Open and close; nothing is written."""
    os.close(os.open(path, os.O_WRONLY))
