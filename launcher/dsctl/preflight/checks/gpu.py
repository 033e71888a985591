"""The cards and their driver."""

from __future__ import annotations

from collections import Counter

from dsctl.model.facts import Gpu, Nvml, NvmlState
from dsctl.planning.cards import LABEL_SLACK, suits
from dsctl.preflight.drivers import read_drivers, version_key
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn, worst
from dsctl.preflight.registry import CheckContext, check

#: CUDA programs get 94.97 of the 95.59 GiB that NVML names on a 96 GB card.
_USABLE = 94.97 * 1024 / 97_887
_HOT_IDLE_C, _HOT_C = 75, 88
#: A card slows down at this temperature (NVIDIA's slowdown threshold is in the low nineties).
_LOW_POWER_W = 250
_PSU_SUM_W = 1150


def _nvml(context: CheckContext) -> Nvml:
    nvml = context.facts.nvml
    assert nvml is not None
    return nvml


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name or 'unknown'})"


@check("gpu.present", needs=("nvml",), device="cuda")
def present(context: CheckContext) -> Outcome:
    """Whether the driver answers and names a card."""
    nvml, pcie = _nvml(context), context.facts.pcie
    on_bus = len(pcie.gpus) if pcie is not None else 0
    bus = f"; the PCI bus shows {on_bus} NVIDIA card{'s' * (on_bus != 1)}" if on_bus else ""
    match nvml.state:
        case NvmlState.OK if nvml.gpus:
            return good(", ".join(_name(g) for g in nvml.gpus))
        case NvmlState.OK:
            return fail(
                f"the driver answers, and finds no GPU{bus}",
                "use the open kernel module (package `…-open`), turn on Above 4G Decoding and "
                "Resizable BAR in the BIOS, then look at `sudo dmesg | grep NVRM`",
            )
        case NvmlState.NO_LIBRARY if context.facts.wsl:
            return fail(
                "WSL sees no NVIDIA driver",
                "install NVIDIA's driver in Windows (never one inside WSL), then `wsl --shutdown`; "
                "`/usr/lib/wsl/lib` must be on the library path",
            )
        case NvmlState.NO_LIBRARY if on_bus:
            return fail(
                f"there is no NVIDIA driver{bus}",
                "install the open driver, e.g. `sudo apt-get install nvidia-driver-580-open`",
            )
        case NvmlState.NO_LIBRARY:
            return fail(
                "there is no NVIDIA driver and no NVIDIA card to be seen",
                "use `--profile cpu-canary` on this machine",
            )
        case NvmlState.SILENT:
            return fail(
                f"the driver does not answer (it hung in {nvml.stuck_in or 'a call'})",
                "stop what uses the GPUs, keep `sudo dmesg | grep -E 'NVRM|Xid'`, then reboot: "
                "nothing else frees a wedged driver",
                "nvidia-smi and every CUDA program will hang the same way, unkillable",
            )
        case NvmlState.LOST:
            return fail(
                "a GPU fell off the bus",
                "power the machine off and on; then look at power cables, riser and slot, and try "
                "`pcie_aspm=off` if it comes back",
                nvml.error or "",
            )
        case NvmlState.MISMATCH:
            return fail(
                "the driver's library does not fit the loaded kernel module",
                "reboot (see gpu.driver-mismatch)",
                nvml.error or "",
            )
        case _:
            return fail(
                f"the driver's library fails: {nvml.error}{bus}",
                "`sudo dmesg | grep -E 'NVRM|Xid'` names the reason; `sudo modprobe nvidia` if the "
                "module is not loaded; in a container restart it; else reboot",
            )


@check("gpu.count", needs=("nvml",), device="cuda")
def count(context: CheckContext) -> Outcome:
    """As many cards as the profile uses, and alike."""
    found, need = len(context.gpus), context.ranks
    if found < need:
        return fail(
            f"{found} GPU{'s' * (found != 1)} here, the profile uses {need}",
            "choose a profile for one card: `--profile single96-resident`",
        )
    names = Counter(g.name for g in context.used_gpus)
    if len(names) > 1:
        listed = ", ".join(f"{n}× {name}" for name, n in names.items())
        alike = all(suits(context.profile.hardware, gpu) for gpu in context.used_gpus)
        return warn(
            f"the cards differ: {listed}",
            "put like cards in the first slots: those that suit the profile are taken in the order "
            "of `nvidia-smi -L`; the slower one sets the pace"
            if alike
            else "choose a profile for the cards that are here (`dsctl plan --profile auto`)",
        )
    listed = ", ".join(str(g.index) for g in context.used_gpus)
    return good(f"{found} found, {need} used: GPU{'s' * (need != 1)} {listed}")


@check("gpu.compute-capability", needs=("nvml",), device="cuda")
def compute_capability(context: CheckContext) -> Outcome:
    """Whether the kernels are built for these cards."""
    wanted = context.profile.hardware.compute_capability
    if wanted is None:
        return good("the profile asks for none in particular")

    def judge(gpu: Gpu) -> Outcome:
        have = gpu.compute_capability
        if have is None:
            raise SkipError(f"{_name(gpu)} does not tell its compute capability")
        text = f"{_name(gpu)} has compute capability {have[0]}.{have[1]}"
        if have[0] != wanted[0]:
            return fail(
                f"{text}, the kernels are for {wanted[0]}.{wanted[1]}",
                "choose a profile for this card (`dsctl plan --profile auto`)",
            )
        return good(text)

    return worst(map(judge, context.used_gpus), good("no GPU"))


@check("gpu.vram-total", needs=("nvml",), device="cuda")
def vram_total(context: CheckContext) -> Outcome:
    """Memory of each card."""
    need = context.profile.hardware.gpu_memory_bytes

    def judge(gpu: Gpu) -> Outcome:
        if gpu.memory_total_bytes is None:
            raise SkipError(f"{_name(gpu)} does not tell its memory")
        text = f"{_name(gpu)} has {gib(gpu.memory_total_bytes)}"
        if gpu.memory_total_bytes < need * LABEL_SLACK:
            return fail(
                f"{text}, the profile is made for {gib(need)}",
                "choose a profile for this card (`dsctl plan --profile auto`)",
            )
        return good(text)

    return worst(map(judge, context.used_gpus), good("no GPU"))


@check("gpu.vram-free", needs=("nvml",), device="cuda")
def vram_free(context: CheckContext) -> Outcome:
    """The engine refuses to start when less than its share of the card is free."""
    share = float(context.value("gpu_memory_utilization", 0.92))

    def judge(gpu: Gpu) -> Outcome:
        total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
        if total is None or used is None:
            raise SkipError(f"{_name(gpu)} does not tell its memory")
        usable = total * _USABLE
        free = min(usable, total - used)
        who = ", ".join(
            f"pid {p.pid} {p.name or ''} {gib(p.used_bytes or 0)}".replace("  ", " ")
            for p in gpu.processes
        )
        if free < share * usable:
            pids = " ".join(str(p.pid) for p in gpu.processes)
            remedy = (
                f"end what holds it: `ps -fp {pids.replace(' ', ',')}`, then `kill PID`"
                if pids
                else "end what holds it (`nvidia-smi`; a desktop, another container, a zombie)"
            )
            return fail(
                f"{_name(gpu)}: {gib(used)} in use, {gib(free)} free, the engine asks for "
                f"{gib(share * usable)} (utilization {share:g})",
                remedy,
                who,
            )
        return good(f"{_name(gpu)}: {gib(free)} free", who)

    return worst(map(judge, context.used_gpus), good("no GPU"))


@check("gpu.driver", needs=("nvml",), device="cuda")
def driver(context: CheckContext) -> Outcome:
    """The driver's age, and what people met with this very one."""
    version = _nvml(context).driver_version
    if version is None:
        raise SkipError("the driver does not tell its version (see gpu.present)")
    known = read_drivers()
    cuda = _nvml(context).cuda_driver_version
    text = f"driver {version}" + (f" (CUDA {cuda})" if cuda else "")
    if version_key(version) < version_key(known.oldest):
        return fail(
            f"{text} is too old: {known.oldest_why}",
            "install a newer one, e.g. `sudo apt-get install nvidia-driver-580-open`, and reboot",
            "NVIDIA_DISABLE_REQUIRE=1 only moves the failure to a later moment",
        )
    cares = {"any"} | ({"pinned"} if context.uses_base_cache else set())
    cares |= {"dual"} if context.ranks > 1 else set()
    for note in known.notes:
        if version == note.version and note.matters in cares:
            return warn(
                f"{text}: {note.what}",
                "no driver is free of reports; if you meet this, change to another of "
                "580.167.08, 610.43.03 or 615.71.09",
            )
    return good(text)


@check("gpu.open-kernel-module", needs=("kernel_module",), device="cuda")
def open_kernel_module(context: CheckContext) -> Outcome:
    """Blackwell cards work with the open kernel module only."""
    module = context.facts.kernel_module
    assert module is not None
    if module.is_open:
        return good(f"open kernel module {module.version}")
    blackwell = (context.profile.hardware.compute_capability or (0, 0))[0] >= 10
    text = f"the proprietary kernel module {module.version} is loaded"
    if not blackwell:
        return good(text)
    return fail(
        f"{text}; Blackwell cards need the open one",
        "install the `-open` package of your driver (e.g. `nvidia-driver-580-open`) and reboot",
        "`modinfo -F license nvidia` must say `Dual MIT/GPL`",
    )


@check("gpu.driver-mismatch", needs=("nvml",), device="cuda")
def driver_mismatch(context: CheckContext) -> Outcome:
    """A driver upgraded under the running module."""
    nvml, module = _nvml(context), context.facts.kernel_module
    remedy = (
        "reboot; then keep upgrades off the driver: `sudo apt-mark hold 'nvidia-*' 'libnvidia-*'`"
    )
    if nvml.state is NvmlState.MISMATCH:
        loaded = f" {module.version}" if module is not None else ""
        return fail(
            f"the driver was upgraded under the running kernel module{loaded}",
            remedy,
            nvml.error or "",
        )
    if nvml.driver_version is None or module is None:
        raise SkipError(
            context.facts.why_absent("kernel_module")
            if module is None
            else "the driver does not tell its version (see gpu.present)"
        )
    if nvml.driver_version != module.version:
        return fail(
            f"kernel module {module.version}, library {nvml.driver_version}",
            remedy,
        )
    return good(f"module and library are both {module.version}")


@check("gpu.mig", needs=("nvml",), device="cuda")
def mig(context: CheckContext) -> Outcome:
    """A card cut into MIG slices has no slice large enough."""
    cut = [g for g in context.used_gpus if g.mig_mode]
    if cut:
        return fail(
            f"{_name(cut[0])} is in MIG mode; one slice cannot hold the model",
            f"`sudo nvidia-smi -i {cut[0].index} -mig 0`, then reset or reboot",
        )
    return good("MIG is off")


@check("gpu.power-limit", needs=("nvml",), device="cuda")
def power_limit(context: CheckContext) -> Outcome:
    """A cap that slows, or two cards that together trip the power supply."""
    limits = [(g, g.power_limit_w) for g in context.used_gpus if g.power_limit_w is not None]
    if not limits:
        raise SkipError("the cards do not tell their power limit")
    low = [(g, w) for g, w in limits if w < _LOW_POWER_W]
    if low:
        gpu, watts = low[0]
        return warn(
            f"{_name(gpu)} is capped at {watts:g} W",
            f"raise it: `sudo nvidia-smi -i {gpu.index} -pl 400` (with the power supply in mind)",
        )
    total = sum(w for _, w in limits)
    if len(limits) > 1 and total > _PSU_SUM_W:
        return warn(
            f"{len(limits)} cards may draw {total:g} W, and in step",
            "with a power supply below 2,000 W cap them: `sudo nvidia-smi -pl 450`; decoding costs "
            "almost nothing of it",
            "tensor parallelism loads both cards in the same microsecond; supplies have tripped",
        )
    return good(", ".join(f"GPU {g.index}: {w:g} W" for g, w in limits))


@check("gpu.temperature", needs=("nvml",), device="cuda")
def temperature(context: CheckContext) -> Outcome:
    """A card that is hot before anything runs."""

    def judge(gpu: Gpu) -> Outcome:
        degrees = gpu.temperature_c
        if degrees is None:
            raise SkipError(f"{_name(gpu)} does not tell its temperature")
        text = f"{_name(gpu)}: {degrees:g} °C"
        remedy = "look at fans and air flow; case fans that follow the CPU do not see the card"
        if degrees >= _HOT_C:
            return fail(f"{text}, close to where it slows down", remedy)
        busy = bool(gpu.processes)
        if degrees >= _HOT_IDLE_C and not busy:
            return warn(f"{text} with nothing running on it", remedy)
        return good(text)

    return worst(map(judge, context.used_gpus), good("no GPU"))
