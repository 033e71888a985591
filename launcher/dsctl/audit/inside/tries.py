"""How something is tried, and what is told of it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

#: Nothing left this container: there was no way, or it was forbidden. A refusal or a silence would
#: mean that a packet travelled.
NO_WAY = {errno.ENETUNREACH, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
FORBIDDEN = {errno.EPERM, errno.ENOSYS, errno.EACCES}

RESULTS: list[dict[str, Any]] = []


def tell(id_: str, promise: str, how: str, held: bool | None, evidence: str) -> None:
    """One result."""
    RESULTS.append(
        {"id": id_, "promise": promise, "how": how, "held": held, "evidence": evidence[:300]}
    )


def name_of(number: int) -> str:
    """ENETUNREACH instead of 101."""
    return errno.errorcode.get(number, str(number))


def attempt(action: Callable[[], Any]) -> int:
    """Errno of what was tried; 0 when it worked."""
    try:
        action()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def judge(id_: str, promise: str, how: str, outcomes: dict[str, int], allowed: set[int]) -> None:
    """Held when every attempt failed for one of the reasons allowed."""
    bad = {what: code for what, code in outcomes.items() if code not in allowed}
    shown = bad or outcomes
    words = ", ".join(
        f"{what}: {name_of(code) if code else 'worked'}" for what, code in shown.items()
    )
    tell(id_, promise, how, not bad, words)


def in_child(*arguments: int) -> int:
    """Errno of a system call made by a child, 0 when it worked."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        ctypes.set_errno(0)
        failed = libc.syscall(*[ctypes.c_long(a) for a in arguments]) == -1
        os._exit(ctypes.get_errno() if failed else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
