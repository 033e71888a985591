"""What the trap reads from the wire, and that its answers are what a kernel accepts."""

from __future__ import annotations

import ipaddress
import ssl
import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.vet.trap_program import packets

V4 = st.binary(min_size=4, max_size=4)
V6 = st.binary(min_size=16, max_size=16)


def client_hello(name: str | None) -> bytes:
    """The first message of a real TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server cannot end")


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


def sums_to_nothing(reply: bytes) -> bool:
    """Whether the checksum over pseudo header and body of an IP packet comes out right."""
    packet = packets.read_ip(
        b"\0" * 12 + (b"\x08\x00" if reply[0] >> 4 == 4 else b"\x86\xdd") + reply
    )
    assert packet is not None
    pseudo = b""
    if packet.protocol != packets.ICMP:
        pseudo = packet.source + packet.target
        pseudo += struct.pack("!IxxxB", len(packet.body), packet.protocol)
    header = reply[:20] if reply[0] >> 4 == 4 else b""
    return packets.checksum(pseudo + packet.body) == 0 and packets.checksum(header) in (0, 0xFFFF)


@given(st.one_of(st.tuples(V4, V4), st.tuples(V6, V6)), st.binary(max_size=300), st.binary())
def test_every_answer_has_the_checksums_a_kernel_wants(
    ends: tuple[bytes, bytes], data: bytes, heard: bytes
) -> None:
    packet = packets.Packet(*ends, packets.UDP, struct.pack("!HHHH", 4000, 53, 8, 0) + heard)
    assert sums_to_nothing(packets.reply_udp(packet, data))
    segment = packets.Segment(4000, 443, 1, 2, packets.SYN, b"")
    assert sums_to_nothing(packets.reply_tcp(packet, segment, 5, 6, packets.ACK, data))
    echo = packets.ICMP if len(ends[0]) == 4 else packets.ICMP6
    ping = packets.Packet(*ends, echo, b"\x08\0\0\0" + data)
    assert sums_to_nothing(packets.reply_echo(ping))


@given(st.binary(max_size=120))
def test_no_bytes_break_a_reader(data: bytes) -> None:
    for kind in (b"\x08\x00", b"\x86\xdd", b"\x08\x06"):
        packet = packets.read_ip(b"\0" * 12 + kind + data)
        if packet is not None:
            packets.read_tcp(packet.body)
    packets.read_question(data)
    packets.server_name(data)
    packets.http_host(data)


def test_a_question_is_read_and_answered_with_its_own_words() -> None:
    asked = packets.read_question(query("a.example.org", packets.AAAA))
    assert asked is not None
    assert (asked.name, asked.type_name) == ("a.example.org", "AAAA")
    address = ipaddress.ip_address("2001:2::9").packed
    answer = packets.dns_answer(asked, address)
    assert answer.startswith(b"\0\x07\x85\x80\0\1\0\1")
    assert asked.raw in answer
    assert answer.endswith(address)
    assert packets.read_question(answer) is None  # an answer is no question


def test_the_name_in_a_tls_greeting_is_read() -> None:
    assert packets.server_name(client_hello("telemetry.example.org")) == "telemetry.example.org"
    assert packets.server_name(client_hello(None)) is None


def test_a_plain_request_is_told_by_method_host_and_path() -> None:
    request = b"POST /collect?id=1 HTTP/1.1\r\nAccept: */*\r\nHost: stats.example.org\r\n\r\nbody"
    assert packets.http_host(request) == "POST stats.example.org/collect?id=1"
    assert packets.http_host(b"SSH-2.0-OpenSSH_9.2\r\n") is None


def test_extension_headers_of_ipv6_are_walked_through() -> None:
    udp = struct.pack("!HHHH", 1, 9, 8, 0)
    options = bytes([packets.UDP, 0]) + b"\0" * 6
    fragment = bytes([60, 0]) + b"\0" * 6
    body = fragment + options + udp
    head = struct.pack("!IHBB", 6 << 28, len(body), 44, 64) + b"\1" * 16 + b"\2" * 16
    packet = packets.read_ip(b"\0" * 12 + b"\x86\xdd" + head + body)
    assert packet is not None
    assert (packet.protocol, packet.body) == (packets.UDP, udp)
