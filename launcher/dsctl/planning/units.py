"""Units: bytes are ints, seconds floats; GiB appears only where something is printed."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def gib(value: float) -> int:
    """`value` GiB in bytes."""
    return round(value * GIB)


def mib(value: float) -> int:
    """`value` MiB in bytes."""
    return round(value * MIB)


def show(value: int) -> str:
    """Bytes for people: GiB with two digits, MiB below a tenth of a GiB."""
    if abs(value) >= GIB // 10:
        return f"{value / GIB:.2f} GiB"
    return f"{value / MIB:.0f} MiB"


def ceil_div(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)
