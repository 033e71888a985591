"""Every way out, by name and by address."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial
from typing import Any

from dsctl.audit.inside.tries import FORBIDDEN, NO_WAY, attempt, judge, tell

WAIT_S = 2.0
SOCKETS = {
    "raw IPv4": (socket.AF_INET, socket.SOCK_RAW, 1),
    "raw IPv6": (getattr(socket, "AF_INET6", 10), socket.SOCK_RAW, 58),
    "packet": (17, socket.SOCK_RAW, 0x0300),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "alg": (38, socket.SOCK_SEQPACKET, 0),
}


def network(listeners: list[list[Any]]) -> None:
    """Every way out, by name and by address."""
    up = []
    for name in sorted(os.listdir("/sys/class/net")):
        try:
            with open(f"/sys/class/net/{name}/flags") as file:
                if name != "lo" and int(file.read(), 16) & 1:
                    up.append(name)
        except OSError:
            continue
    tell(
        "net.interfaces",
        "no network interface but loopback",
        "listed /sys/class/net",
        not up,
        f"up: {', '.join(up)}" if up else "lo alone is up",
    )
    names = {}
    for name in ("example.com", "huggingface.co", "host.docker.internal"):
        try:
            socket.getaddrinfo(name, 443)
            names[name] = "resolved"
        except OSError as error:
            names[name] = str(error)
    good = "resolved" not in names.values()
    tell(
        "net.name",
        "no name resolves",
        "asked the resolver for names of the internet",
        good,
        ", ".join(f"{k}: {v}" for k, v in names.items()),
    )
    servers = [(socket.AF_INET, ("8.8.8.8", 53)), (socket.AF_INET6, ("2001:4860:4860::8888", 53))]
    judge(
        "net.dns",
        "no packet to a name server",
        "sent UDP to public name servers",
        {f"{a[0]}": attempt(partial(send_datagram, f, a)) for f, a in servers},
        NO_WAY,
    )
    public = {
        socket.AF_INET: [("1.1.1.1", 443), ("169.254.169.254", 80)],
        socket.AF_INET6: [("2606:4700:4700::1111", 443)],
    }
    for family, label in ((socket.AF_INET, "IPv4"), (socket.AF_INET6, "IPv6")):
        targets = public[family] + [
            tuple(t) for t in listeners if (":" in t[0]) == (label == "IPv6")
        ]
        judge(
            f"net.{label.lower()}",
            f"no connection out over {label}",
            f"connected to {len(targets)} addresses: public ones and listeners on this host",
            {t[0]: attempt(partial(connect, family, t)) for t in targets},
            NO_WAY,
        )
    judge(
        "net.raw",
        "no raw, packet, vsock or crypto sockets",
        "opened one of each",
        {n: attempt(partial(open_socket, *a)) for n, a in SOCKETS.items()},
        FORBIDDEN | {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT},
    )


def connect(family: int, target: tuple[str, int]) -> None:
    """Connect and hang up."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(target)


def send_datagram(family: int, target: tuple[str, int]) -> None:
    """One packet."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"\0", target)


def open_socket(family: int, kind: int, protocol: int) -> None:
    """Open one and close it."""
    socket.socket(family, kind, protocol).close()
