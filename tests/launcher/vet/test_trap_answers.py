"""The trap writes down everything that is tried, and answers so that the other side goes on."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any

from tests.launcher.vet.test_trap_packets import client_hello, query
from tests.launcher.vet.trap_program import answers, packets

HERE4, HERE6 = ipaddress.ip_address("10.255.255.2").packed, ipaddress.ip_address("fd00::2").packed


class Wire:
    """Sends packets to the trap and keeps what it wrote down."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now = 100.0
        self.notebook = answers.Notebook(lambda r: self.lines.append(dict(r)), lambda: self.now)
        self.trap = answers.Answers(self.notebook)

    def send(self, to: str, protocol: int, body: bytes) -> list[bytes]:
        target = ipaddress.ip_address(to).packed
        here = HERE4 if len(target) == 4 else HERE6
        replies: list[bytes] = self.trap.to(packets.Packet(here, target, protocol, body))
        return replies

    def udp(self, to: str, port: int, data: bytes) -> list[bytes]:
        return self.send(to, packets.UDP, struct.pack("!HHHH", 4000, port, 8, 0) + data)

    def tcp(self, to: str, port: int, flags: int, data: bytes = b"", sport: int = 4000) -> Any:
        head = struct.pack("!HHIIBBHHH", sport, port, 10, 20, 5 << 4, flags, 1024, 0, 0)
        (reply,) = self.send(to, packets.TCP, head + data)
        return packets.read_tcp(reply[40 if reply[0] >> 4 == 6 else 20 :])

    def told(self) -> list[tuple[Any, ...]]:
        """The last line about each try."""
        self.notebook.flush()
        last = {line["id"]: line for line in self.lines if "id" in line}
        fields = ("protocol", "address", "port", "name", "said", "count")
        return [tuple(line[f] for f in fields) for line in last.values()]


def test_a_name_gets_an_address_and_the_address_gives_the_name_away() -> None:
    wire = Wire()
    for kind in (packets.A, packets.AAAA):
        (reply,) = wire.udp("8.8.8.8", 53, query("home.example.org", kind))
        address = ipaddress.ip_address(reply[-4:] if kind == packets.A else reply[-16:])
        assert wire.tcp(str(address), 443, packets.SYN).flags == packets.SYN | packets.ACK
    assert [line[:4] for line in wire.told()] == [
        ("dns", "8.8.8.8", 53, "home.example.org"),
        ("tcp", "198.18.0.1", 443, "home.example.org"),
        ("dns", "8.8.8.8", 53, "home.example.org"),
        ("tcp", "2001:2::1", 443, "home.example.org"),
    ]


def test_a_bare_address_is_written_down_for_both_families() -> None:
    wire = Wire()
    wire.tcp("203.0.113.9", 4444, packets.SYN)
    wire.tcp("2001:db8::1", 80, packets.SYN)
    wire.udp("9.9.9.9", 8125, b"count:1|c")
    assert wire.told() == [
        ("tcp", "203.0.113.9", 4444, None, "", 1),
        ("tcp", "2001:db8::1", 80, None, "", 1),
        ("udp", "9.9.9.9", 8125, None, "count:1|c", 1),
    ]


def test_what_comes_over_a_connection_is_told_and_the_connection_ended() -> None:
    wire = Wire()
    push = packets.PSH | packets.ACK
    for sport, data in ((1, client_hello("api.example.org")), (2, b"GET / HTTP/1.0\r\n\r\n")):
        wire.tcp("203.0.113.9", 443 + sport, packets.SYN, sport=sport)
        reply = wire.tcp("203.0.113.9", 443 + sport, push, data, sport=sport)
        assert reply.flags & packets.FIN
        assert reply.ack == 10 + len(data)
    assert [line[4] for line in wire.told()] == ["TLS for api.example.org", "GET /"]


def test_tries_again_are_counted_and_a_connection_counts_once() -> None:
    wire = Wire()
    for sport in (1, 2, 3, 3):  # the last is the same connection, asked again
        wire.tcp("203.0.113.9", 443, packets.SYN, sport=sport)
    assert wire.told() == [("tcp", "203.0.113.9", 443, None, "", 3)]


def test_a_connection_that_was_never_opened_is_reset() -> None:
    assert Wire().tcp("203.0.113.9", 443, packets.ACK, b"x").flags & packets.RST


def test_dns_over_tcp_is_answered_too() -> None:
    wire = Wire()
    message = query("x.example.org", packets.A)
    wire.tcp("1.1.1.1", 53, packets.SYN)
    framed = struct.pack("!H", len(message)) + message
    reply = wire.tcp("1.1.1.1", 53, packets.PSH | packets.ACK, framed)
    assert reply.data.endswith(ipaddress.ip_address("198.18.0.1").packed)
    assert ("dns", "1.1.1.1", 53, "x.example.org", "A", 1) in wire.told()


def test_the_kernels_own_neighbour_talk_is_nobodys_try_and_a_ping_is() -> None:
    wire = Wire()
    for kind in (133, 135, 143):
        assert wire.send("ff02::2", packets.ICMP6, bytes([kind]) + b"\0" * 7) == []
    assert wire.told() == []
    assert len(wire.send("2001:db8::1", packets.ICMP6, b"\x80\0\0\0ping")) == 1
    assert wire.told() == [("icmp", "2001:db8::1", None, None, "type 128", 1)]


def test_any_other_protocol_is_written_down_by_its_number() -> None:
    wire = Wire()
    wire.send("203.0.113.9", 47, b"gre")
    assert wire.told() == [("ip-47", "203.0.113.9", None, None, "", 1)]


def test_tries_without_end_are_counted_and_not_kept() -> None:
    wire = Wire()
    for port in range(1, 2500):
        wire.udp("203.0.113.9", port, b"")
    wire.notebook.flush()
    assert wire.lines[-1] == {"lost": 499}
    assert len(wire.told()) == 2000
