"""Who we are, whether we can become somebody else, and which system calls pass."""

from __future__ import annotations

import os
import stat
from typing import Any

from dsctl.audit.inside.tries import FORBIDDEN, attempt, in_child, judge, tell


def privileges() -> None:
    """Who we are, and whether we can become somebody else."""
    for pid in ("self", "1"):
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
        caps = {k: int(status[k], 16) for k in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}
        who = "the engine" if pid == "1" else "a process in the container"
        uids = status["Uid"].split()
        tell(
            f"priv.caps.{pid}",
            f"{who} has no capability and is not root",
            f"read /proc/{pid}/status",
            not any(caps.values()) and "0" not in uids,
            f"uid {uids[0]}, " + " ".join(f"{k}={v:x}" for k, v in caps.items()),
        )
        locked = status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
        tell(
            f"priv.locked.{pid}",
            f"{who} cannot gain privileges and is under a system call filter",
            f"read /proc/{pid}/status",
            locked,
            f"NoNewPrivs={status['NoNewPrivs'].strip()} Seccomp={status['Seccomp'].strip()}",
        )
    judge(
        "priv.setuid",
        "nobody becomes root",
        "setuid(0), setgid(0), setgroups",
        {
            "setuid": attempt(lambda: os.setuid(0)),
            "setgid": attempt(lambda: os.setgid(0)),
            "setgroups": attempt(lambda: os.setgroups([0])),
        },
        FORBIDDEN,
    )
    node = "/tmp/.dsctl-audit-node"
    judge(
        "priv.mknod",
        "no device can be made",
        "mknod of the first disk and the first card",
        {
            "disk": attempt(lambda: os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(8, 0))),
            "card": attempt(lambda: os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(195, 0))),
        },
        FORBIDDEN,
    )


def calls(groups: dict[str, dict[str, Any]]) -> None:
    """Forbidden system calls, each in a child of its own."""
    for id_, group in groups.items():
        named = group["calls"]
        if os.uname().machine != "x86_64":
            tell(id_, group["promise"], "system calls", None, "numbers are known for x86-64 only")
            continue
        outcomes = {name: in_child(*arguments) for name, arguments in named.items()}
        judge(id_, group["promise"], " ".join(outcomes), outcomes, FORBIDDEN)
