"""What the planner needs to know of a machine, and the machine a profile is made for."""

from __future__ import annotations

from pathlib import Path

from dsctl.model.base import Value
from dsctl.model.facts import Disk, Facts, Gpu
from dsctl.model.profile import Profile
from dsctl.planning.units import gib

#: Usable of labelled memory on an RTX PRO 6000: 94.97 GiB (as CUDA reports) of 97,887 MiB (NVML).
USABLE_SHARE = 94.97 * 1024 / 97_887
#: The Windows desktop and WDDM keep this much of a card under WSL2 (reported: 1.3 GiB).
WSL_OVERHEAD_BYTES = gib(1.3)


class Card(Value):
    """One GPU: what CUDA programs can use of it, what of that others use now, its link."""

    index: int
    name: str
    usable_bytes: int
    used_bytes: int = 0
    compute_capability: tuple[int, int] | None = None
    memory_bytes_per_s: float
    link_bytes_per_s: float

    @property
    def memory_total_bytes(self) -> int:
        """As NVML counts it: what programs can use, and what the driver keeps."""
        return round(self.usable_bytes / USABLE_SHARE)

    @property
    def capacity_bytes(self) -> int:
        """What a new engine can have."""
        return max(0, self.usable_bytes - self.used_bytes)


class Machine(Value):
    """Cards, host memory and disk as the planner needs them; `assumed` when nobody looked."""

    cards: tuple[Card, ...] = ()
    host_total_bytes: int
    host_available_bytes: int
    disk_free_bytes: int | None = None
    disk_bytes_per_s: float
    wsl: bool = False
    assumed: bool = False


#: RTX PRO 6000 Blackwell (GDDR7 at 28 Gbit/s on 512 bits): NVIDIA's data sheet says 1,792 GB/s.
PRO_6000_BYTES_PER_S = 1.792e12
#: Host to device over PCIe 5.0 x16 as measured by the reference runtime: 51.6 GiB/s.
PCIE5_X16_BYTES_PER_S = 51.6 * (1 << 30)

#: Sequential reads of a plain NVMe and of a hard disk, where nobody measured this one.
NVME_BYTES_PER_S = 3e9
HARD_DISK_BYTES_PER_S = 1.8e8

#: PCI device ids of cards with 96 GB (pci.ids): RTX PRO 6000 Blackwell Workstation, Max-Q, Server.
_CARDS_96 = frozenset({"0x2bb1", "0x2bb4", "0x2bb5"})
#: Of a host's memory, what can be had when nothing else runs.
_FREEABLE = 0.93


def link_bytes_per_s(generation: int | None, width: int | None) -> float:
    """Copy bandwidth of a PCIe link: halves per generation below 5, and with the width."""
    return PCIE5_X16_BYTES_PER_S * 2.0 ** ((generation or 5) - 5) * (width or 16) / 16


def machine_for(profile: Profile) -> Machine:
    """The machine the profile was made for: what `dsctl plan` assumes without facts."""
    need = profile.hardware
    overhead = WSL_OVERHEAD_BYTES if need.wsl == "required" else 0
    cards = tuple(
        _reference_card(index, need.compute_capability, overhead) for index in range(need.gpus)
    )
    return Machine(
        cards=cards,
        host_total_bytes=max(need.host_memory_bytes, gib(8)),
        host_available_bytes=max(need.host_memory_bytes, gib(8)),
        disk_bytes_per_s=NVME_BYTES_PER_S,
        wsl=need.wsl == "required",
        assumed=True,
    )


def _reference_card(index: int, capability: tuple[int, int] | None, used_bytes: int) -> Card:
    return Card(
        index=index,
        name="RTX PRO 6000 Blackwell (assumed)",
        usable_bytes=round(97_887 * (1 << 20) * USABLE_SHARE),
        used_bytes=used_bytes,
        compute_capability=capability,
        memory_bytes_per_s=PRO_6000_BYTES_PER_S,
        link_bytes_per_s=PCIE5_X16_BYTES_PER_S,
    )


def machine_from_facts(facts: Facts, *, path: str | None = None) -> Machine:
    """What the planner needs of collected facts; `path` is where checkpoint and packs will lie
    (default: where profiles look for checkpoints).

    What could not be read is taken as absent: no GPUs, no memory, an unknown disk.
    """
    if path is None:
        home = Path.home() if facts.source == "live" else Path("/home/user")
        path = str(home / "models")
    memory = facts.memory
    limit = memory.limit_bytes if memory is not None and memory.limit_bytes else None
    disk = facts.disk_of(path)
    total = memory.total_bytes if memory is not None else 0
    available = memory.available_bytes if memory is not None else 0
    return Machine(
        cards=tuple(_card(gpu, wsl=bool(facts.wsl)) for gpu in facts.gpus),
        host_total_bytes=min(total, limit) if limit else total,
        host_available_bytes=min(available, limit) if limit else available,
        disk_free_bytes=disk.free_bytes if disk is not None else None,
        disk_bytes_per_s=_disk_speed(disk),
        wsl=bool(facts.wsl),
    )


def mended(machine: Machine, facts: Facts) -> Machine:
    """The same machine as it could be without new hardware: nobody else uses its memory and cards,
    the disk is cleared, and known cards on the bus that no driver speaks for do answer.
    """
    overhead = WSL_OVERHEAD_BYTES if machine.wsl else 0
    cards = [c.model_copy(update={"used_bytes": overhead}) for c in machine.cards]
    on_bus = [d for d in facts.pcie.gpus if d.device in _CARDS_96] if facts.pcie else []
    cards += [_reference_card(n, (12, 0), overhead) for n in range(len(cards), len(on_bus))]
    return machine.model_copy(
        update={
            "cards": tuple(cards),
            "host_available_bytes": max(
                machine.host_available_bytes, round(machine.host_total_bytes * _FREEABLE)
            ),
            "disk_free_bytes": None,
        }
    )


def _card(gpu: Gpu, *, wsl: bool) -> Card:
    total = gpu.memory_total_bytes or 0
    usable = round(total * USABLE_SHARE)
    # NVML counts what the driver keeps for itself as used; nobody gets that back.
    others = max(0, (gpu.memory_used_bytes or 0) - (total - usable))
    if wsl:  # NVML inside WSL does not see what Windows itself holds
        others = max(others, WSL_OVERHEAD_BYTES)
    return Card(
        index=gpu.index,
        name=gpu.name or "unknown GPU",
        usable_bytes=usable,
        used_bytes=others,
        compute_capability=gpu.compute_capability,
        memory_bytes_per_s=PRO_6000_BYTES_PER_S,
        # Idle cards clock their link down: what it can do, not what it does now.
        link_bytes_per_s=link_bytes_per_s(
            gpu.pcie_gen_max or gpu.pcie_gen_current, gpu.pcie_width_current or gpu.pcie_width_max
        ),
    )


def _disk_speed(disk: Disk | None) -> float:
    """Sequential read, where it was measured; else what such a disk usually does."""
    if disk is None:
        return NVME_BYTES_PER_S
    if disk.read_bytes_per_s is not None:
        return disk.read_bytes_per_s
    return HARD_DISK_BYTES_PER_S if disk.rotational else NVME_BYTES_PER_S
