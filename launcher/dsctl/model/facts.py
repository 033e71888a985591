"""What a machine is: one frozen value, collected once, with a JSON form that can be read anywhere.

A section is `None` when its source could not be read; `Facts.absent` then says why, keyed by the
section's name, and a check that needs the section skips with that reason.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from dsctl.model.base import Value
from dsctl.model.devices import Gpu as Gpu
from dsctl.model.devices import GpuProcess as GpuProcess
from dsctl.model.devices import Iommu as Iommu
from dsctl.model.devices import KernelModule as KernelModule
from dsctl.model.devices import Nvml as Nvml
from dsctl.model.devices import NvmlState as NvmlState
from dsctl.model.devices import PciDevice as PciDevice
from dsctl.model.devices import Pcie as Pcie

#: Version of the JSON form; facts of another version are refused, not guessed at.
FACTS_SCHEMA = 1


class Cpu(Value):
    """Processors. `features` are the kernel's names of the instruction sets that matter here."""

    architecture: str
    vendor: str
    model: str
    sockets: int
    cores: int
    threads: int
    features: tuple[str, ...]


class Memory(Value):
    """Main memory. `limit_bytes`: the control group's limit on this process, where there is one."""

    total_bytes: int
    available_bytes: int
    free_bytes: int
    cached_bytes: int = 0
    shared_bytes: int = 0
    locked_bytes: int = 0
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    commit_limit_bytes: int | None = None
    committed_bytes: int | None = None
    huge_pages_total: int = 0
    huge_pages_free: int = 0
    huge_page_bytes: int = 0
    limit_bytes: int | None = None


class SwapKind(StrEnum):
    """What is behind a swap device."""

    FILE = "file"
    PARTITION = "partition"
    ZRAM = "zram"


class SwapDevice(Value):
    """One line of /proc/swaps. `rotational` and the free room are of the disk it lies on."""

    path: str
    kind: SwapKind
    size_bytes: int
    used_bytes: int
    priority: int
    rotational: bool | None = None


class Vm(Value):
    """Settings and counters of the virtual memory system (pages since boot)."""

    swappiness: int | None = None
    overcommit_memory: int | None = None
    pages_swapped_in: int | None = None
    pages_swapped_out: int | None = None
    oom_kills: int | None = None


class Pressure(Value):
    """Memory pressure (PSI): share of time in percent in which some / all tasks waited."""

    some_avg10: float
    some_avg60: float
    some_avg300: float
    full_avg10: float
    full_avg60: float
    full_avg300: float


class NumaNode(Value):
    """One NUMA node. `cpus` is the kernel's list form, e.g. `0-31,64-95`."""

    index: int
    total_bytes: int
    free_bytes: int
    cpus: str = ""


class Numa(Value):
    """NUMA nodes, and those this process may take memory from."""

    nodes: tuple[NumaNode, ...]
    allowed: tuple[int, ...] | None = None


class Limit(Value):
    """One resource limit; `None` is unlimited. memlock and stack in bytes, nofile a count."""

    soft: int | None
    hard: int | None


class Limits(Value):
    """Resource limits of the process that collected."""

    memlock: Limit
    nofile: Limit
    stack: Limit


class Shm(Value):
    """/dev/shm."""

    total_bytes: int
    free_bytes: int


class System(Value):
    """Kernel, distribution, and what kind of machine it runs on."""

    kernel: str
    cmdline: str | None = None
    distribution: str | None = None
    distribution_id: str | None = None
    distribution_version: str | None = None
    boot_id: str | None = None
    booted_at_s: float | None = None
    wsl: int | None = Field(default=None, description="1 or 2 under WSL, else null")
    virtual_machine: str | None = None
    container: str | None = None
    product: str | None = None
    bios_version: str | None = None
    selinux_enforcing: bool | None = None
    unattended_upgrades: bool | None = None
    upgrades_hold_driver: bool | None = None

    @property
    def iommu_options(self) -> tuple[str, ...]:
        """The words of the kernel command line that set up the IOMMU."""
        words = (self.cmdline or "").split()
        return tuple(w for w in words if "iommu" in w.partition("=")[0])


class Disk(Value):
    """A mounted filesystem. `read_bytes_per_s` only where it was measured on request."""

    path: str
    fstype: str
    total_bytes: int
    free_bytes: int
    options: tuple[str, ...] = ()
    device: str | None = None
    rotational: bool | None = None
    read_bytes_per_s: float | None = None

    @property
    def is_nvme(self) -> bool:
        """Whether it lies on an NVMe device, as far as the device's name tells."""
        return (self.device or "").startswith("/dev/nvme")


class DockerState(StrEnum):
    """How the container engine answered."""

    OK = "ok"
    NOT_INSTALLED = "not-installed"
    NOT_RUNNING = "not-running"
    NO_PERMISSION = "no-permission"
    SILENT = "no-answer"
    ERROR = "error"


class Docker(Value):
    """The container engine: its `/info`, boiled down, and its daemon.json.

    `images`: the names (tags, digests) of what it has; `image_ids`: the content each stands for;
    `image_labels`: what images that dsctl built say about themselves, by name.
    """

    state: DockerState
    error: str | None = None
    version: str | None = None
    operating_system: str | None = None
    cgroup_driver: str | None = None
    cgroup_version: str | None = None
    runtimes: tuple[str, ...] = ()
    default_runtime: str | None = None
    cdi_devices: tuple[str, ...] = ()
    cdi_spec_driver: str | None = None
    rootless: bool = False
    snap: bool = False
    desktop: bool = False
    root_directory: str | None = None
    default_memlock_bytes: int | None = None
    images: tuple[str, ...] | None = None
    image_ids: dict[str, str] | None = None
    image_labels: dict[str, dict[str, str]] | None = None


class P2pVerdict(Value):
    """A verdict on peer access that vLLM keeps on disk, keyed by device numbers alone."""

    path: str
    modified_at_s: float
    devices: str
    grants: bool


class Listener(Value):
    """A TCP port somebody listens on; `address` is `*` for all."""

    port: int
    address: str = "*"


class Python(Value):
    """A Python interpreter that an engine environment can be made with; `headers`: whether its
    Python.h is there, which Triton compiles against."""

    path: str
    version: str
    headers: bool | None = None


class Facts(Value):
    """Everything known about one machine."""

    schema_version: int = FACTS_SCHEMA
    source: str = "live"
    redacted: bool = False
    cpu: Cpu | None = None
    memory: Memory | None = None
    swap: tuple[SwapDevice, ...] | None = None
    vm: Vm | None = None
    pressure: Pressure | None = None
    numa: Numa | None = None
    limits: Limits | None = None
    shm: Shm | None = None
    system: System | None = None
    disks: tuple[Disk, ...] | None = None
    pcie: Pcie | None = None
    iommu: Iommu | None = None
    kernel_module: KernelModule | None = None
    nvml: Nvml | None = None
    docker: Docker | None = None
    p2p_verdicts: tuple[P2pVerdict, ...] | None = None
    listeners: tuple[Listener, ...] | None = None
    pythons: tuple[Python, ...] | None = None
    compilers: tuple[str, ...] | None = None
    absent: dict[str, str] = Field(default_factory=dict)
    elapsed_s: float = 0.0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML named; none where it did not answer."""
        return self.nvml.gpus if self.nvml is not None else ()

    @property
    def wsl(self) -> int | None:
        """1 or 2 under WSL."""
        return self.system.wsl if self.system is not None else None

    def why_absent(self, section: str) -> str:
        """The reason a section is `None`, for people."""
        return self.absent.get(section, f"{section} was not collected")

    def disk_of(self, path: str) -> Disk | None:
        """The filesystem a path lies on: the longest mount point above it."""
        best: Disk | None = None
        for disk in self.disks or ():
            root = disk.path.rstrip("/")
            above = path == disk.path or path.startswith(f"{root}/")
            if above and (best is None or len(disk.path) >= len(best.path)):
                best = disk
        return best
