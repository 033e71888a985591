"""The PCIe tree: GPUs, every bridge above them, ACS and IOMMU groups, from sysfs."""

from __future__ import annotations

import re

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import Iommu, PciDevice, Pcie

_DEVICES = "sys/bus/pci/devices"
_GROUPS = "sys/kernel/iommu_groups"

# PCI Express base specification: extended capabilities start at 0x100; ACS is id 0x000d, its
# control register is 6 bytes in; bit 2 is P2P request redirect, bit 3 completion redirect.
_EXTENDED = 0x100
_ACS_ID = 0x000D
_ACS_CONTROL = 6
_REDIRECT = 0b1100


def pcie(root: Root) -> Pcie:
    """NVIDIA GPUs and the bridges above them."""
    names = root.names(_DEVICES)
    if not names:
        raise AbsentError(f"/{_DEVICES} is missing or empty")
    classes = {name: root.text_or(f"{_DEVICES}/{name}/class") or "" for name in names}
    bridges = {
        bus: name
        for name in names
        if classes[name].startswith("0x0604")
        and (bus := root.int_or(f"{_DEVICES}/{name}/secondary_bus_number"))
    }
    wanted: set[str] = set()
    for name in names:
        if classes[name][:6] in ("0x0300", "0x0302"):
            at: str | None = name
            while at is not None and at not in wanted:
                wanted.add(at)
                at = _parent(root, at, bridges)
    groups = {bdf: number for number, bdfs in _groups(root).items() for bdf in bdfs}
    return Pcie(
        devices=tuple(
            _device(root, name, classes[name], _parent(root, name, bridges), groups.get(name))
            for name in sorted(wanted)
        )
    )


def _parent(root: Root, bdf: str, bridges: dict[int, str]) -> str | None:
    """The bridge above: by the link into the device tree, else by its secondary bus number."""
    try:
        link = root.at(f"{_DEVICES}/{bdf}").readlink()
        above = link.parent.name
        if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", above):
            return above
        if above.startswith("pci"):
            return None
    except OSError:
        pass  # a recorded tree may have plain directories
    bridge = bridges.get(int(bdf.split(":")[1], 16))
    return None if bridge == bdf else bridge


def _device(
    root: Root, bdf: str, class_code: str, parent: str | None, group: int | None
) -> PciDevice:
    def read(name: str) -> str | None:
        return root.text_or(f"{_DEVICES}/{bdf}/{name}")

    try:
        config = root.bytes(f"{_DEVICES}/{bdf}/config")
    except AbsentError:
        config = b""
    return PciDevice(
        bdf=bdf,
        vendor=read("vendor") or "",
        device=read("device") or "",
        class_code=class_code,
        numa_node=root.int_or(f"{_DEVICES}/{bdf}/numa_node"),
        link_speed=parse_speed(read("current_link_speed")),
        link_width=parse_width(read("current_link_width")),
        max_link_speed=parse_speed(read("max_link_speed")),
        max_link_width=parse_width(read("max_link_width")),
        bars=parse_resource(read("resource") or ""),
        parent=parent,
        iommu_group=group,
        acs_redirect=acs_redirect(config),
    )


def parse_speed(text: str | None) -> float | None:
    """`16.0 GT/s PCIe` is 16.0; `Unknown` is None."""
    match = re.match(r"([\d.]+)\s*GT/s", text or "")
    return float(match[1]) if match else None


def parse_width(text: str | None) -> int | None:
    """A lane count; 0 and 255 are how sysfs writes "no link"."""
    if text is None or not text.isdigit() or int(text) in (0, 255):
        return None
    return int(text)


def parse_resource(text: str) -> tuple[int, ...]:
    """Sizes of the six BARs in bytes, from lines of `start end flags`; 0 for an unused one."""
    sizes = []
    for line in text.splitlines()[:6]:
        fields = line.split()
        if len(fields) < 2:
            continue
        start, end = int(fields[0], 16), int(fields[1], 16)
        sizes.append(end - start + 1 if end > start else 0)
    return tuple(sizes)


def acs_redirect(config: bytes) -> bool | None:
    """Whether the ACS control register redirects peer requests or completions to the root.

    `None` where extended configuration space was not readable (which takes root), False where the
    port has no ACS.
    """
    if len(config) < 0x1000:
        return None
    at = _EXTENDED
    for _ in range(64):
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS_ID:
            control = int.from_bytes(config[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
            return control & _REDIRECT != 0
        at = header >> 20
        if at < _EXTENDED:
            return False
    return False


def iommu(root: Root) -> Iommu:
    """IOMMU groups. A host whose IOMMU is off has the directory, empty."""
    if not root.exists(_GROUPS):
        raise AbsentError(f"/{_GROUPS} is missing")
    groups = _groups(root)
    types = {n: root.text_or(f"{_GROUPS}/{n}/type") or "unknown" for n in groups}
    return Iommu(types=types, devices=groups)


def _groups(root: Root) -> dict[int, tuple[str, ...]]:
    return {
        int(name): tuple(root.names(f"{_GROUPS}/{name}/devices"))
        for name in root.names(_GROUPS)
        if name.isdigit()
    }
