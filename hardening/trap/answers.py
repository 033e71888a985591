"""What the trap says to whatever is sent, and what it notes. No sockets: frames in and out."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import packets
from packets import ACK, FIN, PSH, RST, SYN, Packet, Question, Segment

_DNS = 53
_NAMED_BY_DNS = (5353, 5355)
#: Of an image that tries without end only the first of these many destinations are kept apart.
_MOST = 2000
_MOST_NAMES = 50_000
_SAMPLE = 160
_KEEP = 4096
#: The kernel's own voice on a fresh device: router and neighbour discovery, group membership.
_NEIGHBOURHOOD = {*range(130, 138), 143}
_ALERT = b"\x15\x03\x01\x00\x02\x02\x28"  # TLS: handshake failure
_SORRY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_V4, _V6 = int(ipaddress.IPv4Address("198.18.0.0")), int(ipaddress.IPv6Address("2001:2::"))


@dataclass
class Names:
    """An address of the benchmark ranges (RFC 2544, 5180) for every name that is asked for."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def address(self, question: Question) -> bytes | None:
        """The address that answers the question; None where it asks for none."""
        if question.type not in (packets.A, packets.AAAA):
            return None
        number = self._number(question.name)
        if question.type == packets.A:
            return (_V4 + number).to_bytes(4, "big")
        return (_V6 + number).to_bytes(16, "big")

    def name(self, target: bytes) -> str | None:
        """The name whose address this is."""
        number = int.from_bytes(target, "big") - (_V4 if len(target) == 4 else _V6)
        return self.names[number - 1] if 0 < number <= len(self.names) else None

    def _number(self, name: str) -> int:
        """From 1; 0 is shared by all names beyond the most."""
        if name not in self.numbers and len(self.names) < _MOST_NAMES:
            self.names.append(name)
            self.numbers[name] = len(self.names)
        return self.numbers.get(name, 0)


class Notebook:
    """One line for each destination when it is first tried; how often and what was said at the end.

    Few lines, whatever an image does: the log that they go to has bounds.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None], clock: Callable[[], float]) -> None:
        self._write, self._clock = write, clock
        self._seen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._changed: dict[int, dict[str, Any]] = {}
        self._lost = 0

    def note(
        self, protocol: str, address: str, port: int | None, name: str | None, said: str = ""
    ) -> dict[str, Any]:
        """Write down one try; `name` is what was looked up, or whose address this is."""
        key = (protocol, address, port, name, said)
        entry = self._seen.get(key)
        now = self._clock()
        if entry is None:
            if len(self._seen) >= _MOST:
                self._lost += 1
                return {}
            entry = {"id": len(self._seen), "t": now, "protocol": protocol, "address": address}
            entry |= {"port": port, "name": name, "said": said, "count": 1}
            self._seen[key] = entry
            self._write(entry)
        else:
            entry["count"] += 1
            self._changed[entry["id"]] = entry
        return entry

    def heard(self, entry: dict[str, Any], said: str) -> None:
        """Add what came over a connection that was noted before."""
        if entry and said and not entry["said"]:
            entry["said"] = said[:_SAMPLE]
            self._changed[entry["id"]] = entry

    def flush(self) -> None:
        """Write down how often each was tried and what was said."""
        for entry in self._changed.values():
            self._write(entry)
        self._changed.clear()
        if self._lost:
            self._write({"lost": self._lost})


@dataclass
class Connection:
    """One TCP connection that the trap holds the other end of."""

    entry: dict[str, Any]
    next: int
    heard: bytes = b""
    closed: bool = False


class Answers:
    """Holds the other end of everything."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._names = Names()
        self._open: dict[tuple[bytes, int, bytes, int], Connection] = {}

    def to(self, packet: Packet) -> list[bytes]:
        """The IP packets that answer one."""
        if packet.protocol == packets.TCP:
            segment = packets.read_tcp(packet.body)
            return self._tcp(packet, segment) if segment else []
        if packet.protocol == packets.UDP and len(packet.body) >= 8:
            return self._udp(packet)
        if packet.protocol in (packets.ICMP, packets.ICMP6) and packet.body:
            return self._icmp(packet)
        if packet.protocol != packets.IGMP:
            protocol = f"ip-{packet.protocol}"
            self._notebook.note(protocol, packet.to, None, self._names.name(packet.target))
        return []

    def _udp(self, packet: Packet) -> list[bytes]:
        _, port = struct.unpack_from("!HH", packet.body)
        data = packet.body[8:]
        question = packets.read_question(data) if port in (_DNS, *_NAMED_BY_DNS) else None
        if question is None:
            name = self._names.name(packet.target)
            self._notebook.note("udp", packet.to, port, name, sample(data))
            return []
        protocol = "dns" if port == _DNS else "udp"
        self._notebook.note(protocol, packet.to, port, question.name, question.type_name)
        answer = packets.dns_answer(question, self._names.address(question))
        return [packets.reply_udp(packet, answer)] if port == _DNS else []

    def _icmp(self, packet: Packet) -> list[bytes]:
        kind = packet.body[0]
        if packet.protocol == packets.ICMP6 and kind in _NEIGHBOURHOOD:
            return []
        name = self._names.name(packet.target)
        self._notebook.note("icmp", packet.to, None, name, f"type {kind}")
        echo = 8 if packet.protocol == packets.ICMP else 128
        return [packets.reply_echo(packet)] if kind == echo else []

    def _tcp(self, packet: Packet, segment: Segment) -> list[bytes]:
        key = (packet.source, segment.sport, packet.target, segment.dport)
        if segment.flags & RST:
            self._open.pop(key, None)
            return []
        if segment.flags & SYN:
            return [self._greet(packet, segment, key)]
        connection = self._open.get(key)
        if connection is None:
            flags, ack = RST | ACK, segment.seq + len(segment.data)
            return [packets.reply_tcp(packet, segment, segment.ack, ack, flags, b"")]
        return self._listen(packet, segment, connection)

    def _greet(self, packet: Packet, segment: Segment, key: tuple[bytes, int, bytes, int]) -> bytes:
        if key not in self._open:
            if len(self._open) > _MOST:
                self._open.pop(next(iter(self._open)))
            name = self._names.name(packet.target)
            entry = self._notebook.note("tcp", packet.to, segment.dport, name)
            self._open[key] = Connection(entry, 1)
        return packets.reply_tcp(packet, segment, 0, segment.seq + 1, SYN | ACK, b"")

    def _listen(self, packet: Packet, segment: Segment, connection: Connection) -> list[bytes]:
        finished = bool(segment.flags & FIN)
        if not segment.data and not finished:
            return []
        ack = segment.seq + len(segment.data) + finished
        data, close = b"", finished
        if segment.data and not connection.closed:
            connection.heard = (connection.heard + segment.data)[:_KEEP]
            data, end = self._say(segment.dport, packet, connection)
            close = close or end
        close = close and not connection.closed
        flags = ACK | (PSH if data else 0) | (FIN if close else 0)
        reply = packets.reply_tcp(packet, segment, connection.next, ack, flags, data)
        connection.next += len(data) + close
        connection.closed = connection.closed or close
        return [reply]

    def _say(self, port: int, packet: Packet, connection: Connection) -> tuple[bytes, bool]:
        """What to say to all that was heard so far, and whether that ends it."""
        heard = connection.heard
        if port == _DNS and len(heard) >= 2:
            question = packets.read_question(heard[2:])
            if question is None:
                return b"", False
            connection.heard = b""
            self._notebook.note("dns", packet.to, port, question.name, question.type_name)
            answer = packets.dns_answer(question, self._names.address(question))
            return struct.pack("!H", len(answer)) + answer, False
        name = packets.server_name(heard)
        if name or heard[:1] == b"\x16":
            self._notebook.heard(connection.entry, f"TLS for {name}" if name else "TLS")
            return _ALERT, True
        request = packets.http_host(heard) if b"\r\n\r\n" in heard else None
        if request:
            self._notebook.heard(connection.entry, request)
            return _SORRY, True
        self._notebook.heard(connection.entry, sample(heard))
        return b"", False


def sample(data: bytes) -> str:
    """The first bytes as printable text, whatever they are."""
    text = data[:_SAMPLE].decode("latin-1")
    return "".join(c if 32 <= ord(c) < 127 else "." for c in text)
