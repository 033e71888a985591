"""The egress trap: in a network namespace with nothing in it, the other end of every connection.

Run as `python3 DIRECTORY` in a container with `--network none` and the capabilities NET_ADMIN and
NET_RAW. It lays a wire inside the namespace, makes it the way to everywhere for IPv4 and IPv6, and
answers on its far end: every name gets an address, every connection is taken. Another container
that joins the namespace (`--network container:…`) meets nothing else, and nothing can leave, for
there is no device that leads out. Needs Python 3.9 and nothing beside it.

On standard output, one JSON object per line: `{"ready": true, "families": [4, 6], ...}` once the
trap has caught its own tries; one object for each destination when it is first tried, and again
with the same `id` at the end when it was tried more often or something was said; last, when it is
asked to stop (SIGTERM), `{"end": true, "listening": [...], "dropped": N}`. Without that last line
something may have gone unseen.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import netlink
import packets
from answers import Answers, Notebook

NEAR, FAR = "eth0", "wire0"
HERE4, GATEWAY4 = "10.255.255.2", "10.255.255.1"
HERE6, GATEWAY6 = "fd00:d5c:7::2", "fd00:d5c:7::1"
#: Nobody's hardware address: the kernel drops what goes there, and only the trap reads it.
NOWHERE = bytes.fromhex("02d5c7000001")
_ALL_FRAMES = 0x0003
_BUFFER_FORCED, _PACKET, _STATISTICS = 33, 263, 6
_OUTGOING = 4
_PROBE = "probe.trap.invalid"
_PATIENCE_S = 20.0


def lay_out() -> dict[str, str]:
    """Make the wire the way to everywhere; the families that cannot be had, with the reason."""
    netlink.make_wire(NEAR, FAR)
    netlink.bring_up(FAR)
    netlink.bring_up(NEAR)
    missing = {}
    for family, here, gateway, prefix in ((4, HERE4, GATEWAY4, 24), (6, HERE6, GATEWAY6, 64)):
        try:
            netlink.add_address(NEAR, here, prefix)
            netlink.add_neighbour(NEAR, gateway, NOWHERE)
            netlink.add_default_route(NEAR, gateway)
        except OSError as error:
            missing[str(family)] = error.strerror or str(error)
    return missing


class Trap:
    """Reads the far end of the wire and answers, until it is told to stop."""

    def __init__(self) -> None:
        self._wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
        self._wire.bind((FAR, _ALL_FRAMES))
        for option in (_BUFFER_FORCED, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                self._wire.setsockopt(socket.SOL_SOCKET, option, 16 << 20)
                break
        self.stopped = threading.Event()
        self.whole = False
        self._unread = 0
        self.arm(lambda record: None)

    def arm(self, write: Any) -> None:
        """Begin a fresh notebook, whose lines go to `write`."""
        self._notebook = Notebook(write, time.time)
        self._answers = Answers(self._notebook)

    def serve(self) -> None:
        """Answer until `stopped` is set."""
        while not self.stopped.is_set():
            readable, _, _ = select.select([self._wire], [], [], 0.2)
            if readable:
                self._take()
        while select.select([self._wire], [], [], 0)[0]:
            self._take()
        self._notebook.flush()
        self.whole = True  # not reached when something failed

    @property
    def dropped(self) -> int:
        """Frames that came faster than they were read, or could not be read."""
        answer = self._wire.getsockopt(_PACKET, _STATISTICS, 8)
        return int(struct.unpack("=II", answer)[1]) + self._unread

    def _take(self) -> None:
        frame, sender = self._wire.recvfrom(1 << 17)
        if sender[2] == _OUTGOING:
            return
        try:
            packet = packets.read_ip(frame)
            replies = self._answers.to(packet) if packet else []
        except (IndexError, ValueError, struct.error):  # a malformed one must not close the trap
            self._unread += 1
            return
        for reply in replies:
            ether = frame[6:12] + NOWHERE + frame[12:14]
            self._wire.send(ether + reply)


def catches(family: int) -> bool:
    """Whether a look-up, a connection by name and one to a bare address are caught and answered."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    bare = "192.0.2.1" if family == 4 else "2001:db8::1"
    try:
        found = socket.getaddrinfo(_PROBE, 443, kind, socket.SOCK_STREAM)
        for address in (str(found[0][4][0]), bare):
            with socket.create_connection((address, 443), timeout=_PATIENCE_S) as probe:
                probe.sendall(b"GET / HTTP/1.1\r\nHost: probe\r\n\r\n")
                if not probe.recv(16).startswith(b"HTTP/1.1 503"):
                    return False
    except OSError:
        return False
    return True


def listening() -> list[dict[str, Any]]:
    """TCP sockets of this namespace that wait for connections, as /proc/net/tcp{,6} has them."""
    found = []
    for name, family in (("tcp", 4), ("tcp6", 6)):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in (line.split() for line in lines):
            address, port = words[1].split(":")
            if words[3] == "0A":
                local = address.endswith("7F") if family == 4 else address == "0" * 24 + "01000000"
                found.append({"port": int(port, 16), "family": family, "loopback": local})
    return found


def main() -> int:
    """Lay out, prove, then watch."""

    def write(record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    try:
        missing = lay_out()
        trap = Trap()
    except OSError as error:
        write({"ready": False, "why": error.strerror or str(error)})
        return 1
    server = threading.Thread(target=trap.serve)
    server.start()
    signal.signal(signal.SIGTERM, lambda number, frame: trap.stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    families = [family for family in (4, 6) if str(family) not in missing and catches(family)]
    ports: list[dict[str, Any]] = []
    if 4 in families:
        trap.arm(write)
        write({"ready": True, "families": families, "missing": missing})
        while not trap.stopped.wait(1.0):
            ports += [port for port in listening() if port not in ports]
    else:
        write({"ready": False, "why": "the trap does not catch its own tries", "missing": missing})
        trap.stopped.set()
    server.join()
    write({"end": trap.whole, "listening": ports, "dropped": trap.dropped})
    return 0 if families and trap.whole else 1


if __name__ == "__main__":
    sys.exit(main())
