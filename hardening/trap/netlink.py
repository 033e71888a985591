"""Just enough rtnetlink to lay a wire inside an empty network namespace, without any program.

Images to run the trap in have Python and often neither `ip` nor `nft`. Layouts are those of
rtnetlink(7) and of the kernel's `include/uapi/linux/{rtnetlink,if_link,if_addr,neighbour}.h`.
"""

from __future__ import annotations

import os
import socket
import struct

_NEWLINK, _NEWADDR, _NEWROUTE, _NEWNEIGH = 16, 20, 24, 28
_REQUEST_ACK, _CREATE_EXCL = 0x1 | 0x4, 0x400 | 0x200
_ERROR = 2
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINKINFO = 1, 3, 18
_UP = 1
_NODAD = 0x02
_PERMANENT = 0x80
_MAIN_TABLE, _STATIC, _UNICAST, _ONLINK = 254, 4, 1, 4


def make_wire(near: str, far: str) -> None:
    """A pair of virtual Ethernet devices: what goes into one comes out of the other.

    Raises:
        OSError: not permitted (CAP_NET_ADMIN), or the kernel has no veth.
    """
    peer = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0) + _attribute(_IFLA_IFNAME, _name(far))
    kind = _attribute(1, b"veth\0") + _attribute(2, _attribute(1, peer))
    body = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)
    body += _attribute(_IFLA_IFNAME, _name(near)) + _attribute(_IFLA_LINKINFO, kind)
    _ask(_NEWLINK, _CREATE_EXCL, body)


def bring_up(device: str, mac: bytes | None = None) -> None:
    """Switch a device on, with a hardware address of one's own if need be."""
    index = socket.if_nametoindex(device)
    body = struct.pack("=BBHiII", 0, 0, 0, index, _UP, _UP)
    _ask(_NEWLINK, 0, body + (_attribute(_IFLA_ADDRESS, mac) if mac else b""))


def add_address(device: str, address: str, prefix: int) -> None:
    """Give a device an address; an IPv6 one at once, without looking for its like first."""
    family, packed = _packed(address)
    flags = _NODAD if family == socket.AF_INET6 else 0
    body = struct.pack("=BBBBI", family, prefix, flags, 0, socket.if_nametoindex(device))
    _ask(_NEWADDR, _CREATE_EXCL, body + _attribute(2, packed) + _attribute(1, packed))


def add_neighbour(device: str, address: str, mac: bytes) -> None:
    """Say once and for all which hardware address an address has."""
    family, packed = _packed(address)
    body = struct.pack(
        "=BBHiHBB", family, 0, 0, socket.if_nametoindex(device), _PERMANENT, 0, _UNICAST
    )
    _ask(_NEWNEIGH, _CREATE_EXCL, body + _attribute(1, packed) + _attribute(2, mac))


def add_default_route(device: str, gateway: str) -> None:
    """Send everything that has no better way through a gateway on a device."""
    family, packed = _packed(gateway)
    body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _MAIN_TABLE, _STATIC, 0, _UNICAST, _ONLINK)
    index = struct.pack("=i", socket.if_nametoindex(device))
    _ask(_NEWROUTE, _CREATE_EXCL, body + _attribute(5, packed) + _attribute(4, index))


def _name(device: str) -> bytes:
    return device.encode() + b"\0"


def _packed(address: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)


def _attribute(kind: int, value: bytes) -> bytes:
    padding = -len(value) % 4
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * padding


def _ask(kind: int, flags: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.bind((0, 0))
        header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_ACK | flags, 1, 0)
        kernel.send(header + body)
        answer = kernel.recv(65536)
    _, answered, _, _, _ = struct.unpack_from("=IHHII", answer)
    (code,) = struct.unpack_from("=i", answer, 16)
    if answered == _ERROR and code:
        raise OSError(-code, os.strerror(-code))
