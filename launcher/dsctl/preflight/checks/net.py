"""The port."""

from __future__ import annotations

import socket

from dsctl.preflight.outcome import Outcome, fail, good
from dsctl.preflight.registry import CheckContext, check


@check("net.port", needs=("listeners",))
def port(context: CheckContext) -> Outcome:
    """Nobody else may answer where our engine will be asked."""
    number = int(context.value("port", 8000))
    taken = [x for x in context.facts.listeners or () if x.port == number and x.address != "::1"]
    if taken or (context.live and not _can_bind(number)):
        free = _free_port(context, number)
        return fail(
            f"somebody listens on port {number} already",
            f"`dsctl down` if it is our own deployment, `ss -ltnp 'sport = :{number}'` names it; "
            f"or take another port: `--set port={free}`",
            "a foreign server there would be taken for ours",
        )
    return good(f"port {number} is free")


def _can_bind(number: int) -> bool:
    """Binding tells what the list cannot: reserved ports, and sockets of other namespaces."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


def _free_port(context: CheckContext, number: int) -> int:
    taken = {x.port for x in context.facts.listeners or ()}
    return next((p for p in range(number + 1, number + 100) if p not in taken), number + 1)
