"""TCP ports that somebody listens on: parser of /proc/net/tcp and tcp6."""

from __future__ import annotations

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import Listener

_LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h


def listeners(root: Root) -> tuple[Listener, ...]:
    """All listening TCP ports, by number."""
    texts = [root.text_or(f"proc/net/{name}") for name in ("tcp", "tcp6")]
    if texts == [None, None]:
        raise AbsentError("/proc/net/tcp is missing")
    found = {x for text in texts if text for x in parse_tcp(text)}
    return tuple(sorted(found, key=lambda x: (x.port, x.address)))


def parse_tcp(text: str) -> list[Listener]:
    """Listening sockets of one /proc/net/tcp or tcp6 text."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4 or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        found.append(Listener(port=int(port, 16), address=_address(address)))
    return found


def _address(text: str) -> str:
    """The kernel writes 32-bit words in host order, little-endian on every machine this runs on."""
    if not text.strip("0"):
        return "*"
    if len(text) == 8:
        return ".".join(str(b) for b in reversed(bytes.fromhex(text)))
    return "::1" if text == "00000000000000000000000001000000" else "ipv6"
