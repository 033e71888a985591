"""The cards, their links and their driver: sections of the facts."""

from __future__ import annotations

from enum import StrEnum

from dsctl.model.base import Value


class PciDevice(Value):
    """One PCI function. Speeds in GT/s; `parent` is the bridge above it; bars are sizes in bytes.

    `acs_redirect`: the ACS control register of this port redirects peer requests to the root
    (`None`: not readable, which takes root).
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    numa_node: int | None = None
    link_speed: float | None = None
    link_width: int | None = None
    max_link_speed: float | None = None
    max_link_width: int | None = None
    bars: tuple[int, ...] = ()
    parent: str | None = None
    iommu_group: int | None = None
    acs_redirect: bool | None = None

    @property
    def is_gpu(self) -> bool:
        """An NVIDIA display or 3D controller."""
        return self.vendor == "0x10de" and self.class_code[:6] in ("0x0300", "0x0302")


class Pcie(Value):
    """GPUs and the bridges above them."""

    devices: tuple[PciDevice, ...]

    def find(self, bdf: str) -> PciDevice | None:
        """The device of that address, if it is known."""
        return next((d for d in self.devices if d.bdf == bdf), None)

    def path(self, bdf: str) -> tuple[PciDevice, ...]:
        """The device and every bridge above it, up to the root port."""
        found: list[PciDevice] = []
        at = self.find(bdf)
        while at is not None and at not in found:
            found.append(at)
            at = self.find(at.parent) if at.parent else None
        return tuple(found)

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """All NVIDIA GPUs on the bus, by address."""
        return tuple(d for d in self.devices if d.is_gpu)


class Iommu(Value):
    """IOMMU groups by number: their type (`DMA`, `DMA-FQ`, `identity`, …) and their devices."""

    types: dict[int, str]
    devices: dict[int, tuple[str, ...]]

    @property
    def translates(self) -> bool:
        """Whether any group goes through address translation."""
        return any(kind.upper().startswith("DMA") for kind in self.types.values())


class KernelModule(Value):
    """The loaded NVIDIA kernel module."""

    version: str
    is_open: bool


class GpuProcess(Value):
    """A process that holds GPU memory."""

    pid: int
    name: str | None = None
    used_bytes: int | None = None


class Gpu(Value):
    """One GPU as NVML sees it; a field the card or driver does not answer is `None`."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    bar1_total_bytes: int | None = None
    power_limit_w: float | None = None
    power_draw_w: float | None = None
    temperature_c: float | None = None
    persistence_mode: bool | None = None
    ecc_mode: bool | None = None
    mig_mode: bool | None = None
    pcie_gen_current: int | None = None
    pcie_gen_max: int | None = None
    pcie_width_current: int | None = None
    pcie_width_max: int | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def bdf(self) -> str | None:
        """The address in sysfs spelling (`0000:01:00.0`); NVML writes an 8-digit domain."""
        if self.pci_bus_id is None:
            return None
        domain, _, rest = self.pci_bus_id.lower().partition(":")
        return f"{domain[-4:].rjust(4, '0')}:{rest}"

    @property
    def memory_free_bytes(self) -> int | None:
        """Free memory, where both numbers are known."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


class NvmlState(StrEnum):
    """How the driver's library answered."""

    OK = "ok"
    NO_LIBRARY = "no-library"
    MISMATCH = "driver-mismatch"
    LOST = "gpu-lost"
    ERROR = "error"
    SILENT = "no-answer"


class Nvml(Value):
    """What NVML said. `p2p[i][j]` is the driver's word on reads of GPU i from GPU j."""

    state: NvmlState
    error: str | None = None
    code: int | None = None
    stuck_in: str | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    p2p: tuple[tuple[str | None, ...], ...] = ()
