"""What belongs to others: their files, their cards, their processes, the Docker engine."""

from __future__ import annotations

import os
import re

from dsctl.audit.inside.tries import attempt, tell


def neighbours(gpus: int) -> None:
    """What belongs to others: their files, their cards, the daemon."""
    paths = (
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/var/lib/docker",
        "/var/lib/containerd",
        "/var/lib/kubelet",
    )
    there = [p for p in paths if os.path.exists(p)]
    tell(
        "near.volumes",
        "other containers' volumes and the Docker engine are out of sight",
        "looked for " + " ".join(paths),
        not there,
        " ".join(there) or "none is there",
    )
    cards = sorted(n for n in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", n))
    try:
        driver = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        driver = 0
    tell(
        "near.gpus",
        "no card but its own can be seen",
        f"counted cards in /dev and in the driver's list; {gpus} are its own",
        len(cards) <= gpus and driver <= gpus,
        f"/dev: {len(cards)}, driver: {driver}",
    )
    usual = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "console",
        "ptmx",
        "pts",
        "mqueue",
        "shm",
        "fd",
        "stdin",
        "stdout",
        "stderr",
        "core",
    }
    others = [
        n for n in os.listdir("/dev") if n not in usual and not (gpus and n.startswith("nvidia"))
    ]
    tell(
        "near.devices",
        "no device of the host is in reach",
        "listed /dev",
        not others,
        " ".join(others) or "only what every container has",
    )
    own = not readable("/proc/1/ns/pid") or (
        os.readlink("/proc/self/ns/pid") == os.readlink("/proc/1/ns/pid")
    )
    names = [p for p in os.listdir("/proc") if p.isdigit()]
    kernel = any(os.path.exists(f"/proc/{p}") and comm(p) == "kthreadd" for p in names)
    tell(
        "near.processes",
        "no process of the host can be seen",
        "listed /proc",
        own and not kernel,
        f"{len(names)} processes" + (", the kernel's among them" if kernel else ""),
    )


def readable(path: str) -> bool:
    """Whether a link can be read."""
    return attempt(lambda: os.readlink(path)) == 0


def comm(pid: str) -> str:
    """A process' name."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
