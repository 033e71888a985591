"""Reading what was sent, and building the answers. Pure: bytes in, values and bytes out.

RFC 791, 8200 (IP), 9293 (TCP), 768 (UDP), 792 and 4443 (ICMP), 1035 and 3596 (DNS), 8446 and 6066
(the server name in TLS).
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

TCP, UDP, ICMP, ICMP6, IGMP = 6, 17, 1, 58, 2
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
A, AAAA = 1, 28
_FRAGMENT = 44
_EXTENSIONS = {0, 43, 60, _FRAGMENT}
_TYPES = {1: "A", 2: "NS", 5: "CNAME", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV"}
_TYPES |= {65: "HTTPS", 255: "ANY"}


@dataclass(frozen=True)
class Packet:
    """One IP packet: addresses packed (4 or 16 bytes), the protocol above, and its bytes."""

    source: bytes
    target: bytes
    protocol: int
    body: bytes

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if len(self.target) == 4 else 6

    @property
    def to(self) -> str:
        """The address it was sent to, as text."""
        return str(ipaddress.ip_address(self.target))


@dataclass(frozen=True)
class Segment:
    """One TCP segment."""

    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    data: bytes


@dataclass(frozen=True)
class Question:
    """The first question of a DNS message, and the bytes that an answer must repeat."""

    id: int
    name: str
    type: int
    raw: bytes

    @property
    def type_name(self) -> str:
        """`A`, `AAAA`, …; the number where it has no everyday name."""
        return _TYPES.get(self.type, str(self.type))


def read_ip(frame: bytes) -> Packet | None:
    """The IP packet in an Ethernet frame; None for anything else (ARP, a torn one)."""
    kind, body = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and len(body) >= 20:
        length = (body[0] & 15) * 4
        if struct.unpack_from("!H", body, 6)[0] & 0x1FFF:
            return None  # a later fragment; the first one told where it goes
        return Packet(body[12:16], body[16:20], body[9], body[length:])
    if kind == b"\x86\xdd" and len(body) >= 40:
        protocol, rest = body[6], body[40:]
        while protocol in _EXTENSIONS and len(rest) >= 8:
            if protocol == _FRAGMENT and struct.unpack_from("!H", rest, 2)[0] >> 3:
                return None
            length = 8 if protocol == _FRAGMENT else (rest[1] + 1) * 8
            protocol, rest = rest[0], rest[length:]
        return Packet(body[8:24], body[24:40], protocol, rest)
    return None


def read_tcp(body: bytes) -> Segment | None:
    """A TCP segment."""
    if len(body) < 20:
        return None
    sport, dport, seq, ack, offset, flags = struct.unpack_from("!HHIIBB", body)
    return Segment(sport, dport, seq, ack, flags, body[(offset >> 4) * 4 :])


def read_question(message: bytes) -> Question | None:
    """The question of a DNS query; None for an answer, or for what is no DNS."""
    if len(message) < 17 or message[2] & 0x80 or message[4:6] == b"\0\0":
        return None
    labels, at = [], 12
    while at < len(message) and message[at]:
        length = message[at]
        if length > 63 or at + 1 + length > len(message):
            return None
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "backslashreplace"))
        at += 1 + length
    if at + 5 > len(message):
        return None
    (kind,) = struct.unpack_from("!H", message, at + 1)
    ident = struct.unpack_from("!H", message)[0]
    return Question(ident, ".".join(labels), kind, message[12 : at + 5])


def dns_answer(question: Question, address: bytes | None) -> bytes:
    """The answer: the address for an A or AAAA question, an empty one for any other."""
    count = 1 if address else 0
    head = struct.pack("!HHHHHH", question.id, 0x8580, 1, count, 0, 0)
    if not address:
        return head + question.raw
    record = struct.pack("!HHHIH", 0xC00C, question.type, 1, 1, len(address))
    return head + question.raw + record + address


def server_name(data: bytes) -> str | None:
    """The name a TLS client asks for in its first message."""
    if len(data) < 44 or data[0] != 22 or data[5] != 1:
        return None
    try:
        at = 43 + 1 + data[43]
        at += 2 + struct.unpack_from("!H", data, at)[0]
        at += 1 + data[at]
        end = at + 2 + struct.unpack_from("!H", data, at)[0]
        at += 2
        while at + 4 <= min(end, len(data)):
            kind, length = struct.unpack_from("!HH", data, at)
            if kind == 0:
                return data[at + 9 : at + 4 + length].decode("ascii", "backslashreplace")
            at += 4 + length
    except (struct.error, IndexError):
        return None
    return None


def http_host(data: bytes) -> str | None:
    """`METHOD HOST/PATH` of a plain HTTP request."""
    head, _, _ = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):
        return None
    hosts = (line[5:].strip() for line in lines if line[:5].lower() == "host:")
    return f"{words[0]} {next(hosts, '')}{words[1]}"


def reply_tcp(
    packet: Packet, segment: Segment, seq: int, ack: int, flags: int, data: bytes
) -> bytes:
    """The IP packet of a TCP answer."""
    options = b"\x02\x04\x05\xa0" if flags & SYN else b""  # segments of up to 1440 bytes
    offset = (20 + len(options)) // 4 << 4
    head = struct.pack(
        "!HHIIBBHHH",
        segment.dport,
        segment.sport,
        seq & 0xFFFFFFFF,
        ack & 0xFFFFFFFF,
        offset,
        flags,
        65535,
        0,
        0,
    )
    return _reply(packet, TCP, head + options + data, checksum_at=16)


def reply_udp(packet: Packet, data: bytes) -> bytes:
    """The IP packet of a UDP answer."""
    sport, dport = struct.unpack_from("!HH", packet.body)
    return _reply(
        packet, UDP, struct.pack("!HHHH", dport, sport, 8 + len(data), 0) + data, checksum_at=6
    )


def reply_echo(packet: Packet) -> bytes:
    """The IP packet that answers a ping."""
    kind = 0 if packet.protocol == ICMP else 129
    return _reply(packet, packet.protocol, bytes([kind, 0, 0, 0]) + packet.body[4:], checksum_at=2)


def _reply(packet: Packet, protocol: int, body: bytes, *, checksum_at: int) -> bytes:
    source, target = packet.target, packet.source
    pseudo = b""
    if protocol != ICMP:
        pseudo = source + target + struct.pack("!IxxxB", len(body), protocol)
    total = checksum(pseudo + body) or 0xFFFF
    body = body[:checksum_at] + struct.pack("!H", total) + body[checksum_at + 2 :]
    if packet.family == 6:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + source + target + body
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0)
    head += source + target
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
