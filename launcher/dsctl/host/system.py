"""Kernel, distribution, limits, and whether this is WSL, a virtual machine or a container."""

from __future__ import annotations

import re
import shlex

from dsctl.host.root import AbsentError, Root
from dsctl.model.facts import KernelModule, Limit, Limits, System

#: Firmware vendors and products of virtual machines, and how people call them.
_VIRTUAL = {
    "qemu": "KVM/QEMU",
    "kvm": "KVM/QEMU",
    "vmware": "VMware",
    "virtualbox": "VirtualBox",
    "innotek": "VirtualBox",
    "xen": "Xen",
    "amazon ec2": "Amazon EC2",
    "google compute": "Google Compute Engine",
    "microsoft corporation virtual machine": "Hyper-V",
    "openstack": "OpenStack",
    "firecracker": "Firecracker",
}


def system(root: Root) -> System:
    """The system, from whatever of its files can be read.

    Raises:
        AbsentError: not even the kernel's version can be read.
    """
    version = root.text("proc/version").strip()
    release = parse_os_release(root.text_or("etc/os-release") or "")
    kernel = kernel_release(version)
    product = " ".join(
        filter(
            None, (root.text_or(f"sys/class/dmi/id/{n}") for n in ("sys_vendor", "product_name"))
        )
    )
    apt = root.text_or("etc/apt/apt.conf.d/20auto-upgrades")
    wsl = wsl_version(kernel, version)
    return System(
        kernel=kernel,
        cmdline=root.text_or("proc/cmdline"),
        distribution=release.get("PRETTY_NAME"),
        distribution_id=release.get("ID"),
        distribution_version=release.get("VERSION_ID"),
        boot_id=root.text_or("proc/sys/kernel/random/boot_id"),
        booted_at_s=_booted_at(root),
        wsl=wsl,
        virtual_machine=_virtual_machine(root, product) if wsl is None else "WSL",
        container=_container(root),
        product=product or None,
        bios_version=root.text_or("sys/class/dmi/id/bios_version"),
        selinux_enforcing=_flag(root.int_or("sys/fs/selinux/enforce")),
        unattended_upgrades=_upgrades(apt),
        upgrades_hold_driver=_holds_driver(root) if _upgrades(apt) else None,
    )


def kernel_release(version: str) -> str:
    """The release in the text of /proc/version."""
    match = re.match(r"Linux version (\S+)", version)
    return match[1] if match else version.split("\n", 1)[0][:80]


def wsl_version(kernel: str, version: str) -> int | None:
    """1 or 2 under WSL. WSL2 runs a real kernel named so; WSL1 pretends to a 4.4 of Microsoft."""
    text = f"{kernel} {version}".lower()
    if "microsoft" not in text:
        return None
    return 2 if "wsl2" in text or not kernel.startswith("4.4.") else 1


def parse_os_release(text: str) -> dict[str, str]:
    """/etc/os-release (os-release(5)): shell assignments."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            try:
                values[key] = "".join(shlex.split(value))  # quotes off
            except ValueError:
                continue
            if '"' in value or "'" in value:
                values[key] = value.strip().strip("\"'")
    return values


def _booted_at(root: Root) -> float | None:
    match = re.search(r"^btime (\d+)", root.text_or("proc/stat") or "", re.M)
    return float(match[1]) if match else None


def _virtual_machine(root: Root, product: str) -> str | None:
    text = product.lower()
    for mark, name in _VIRTUAL.items():
        if mark in text:
            return name
    flags = re.search(r"^flags\s*:(.*)$", root.text_or("proc/cpuinfo") or "", re.M)
    return "a hypervisor" if flags and "hypervisor" in flags[1].split() else None


def _container(root: Root) -> str | None:
    if root.exists(".dockerenv"):
        return "docker"
    if root.exists("run/.containerenv"):
        return "podman"
    return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _upgrades(apt: str | None) -> bool | None:
    if apt is None:
        return None
    return re.search(r'^\s*APT::Periodic::Unattended-Upgrade\s+"[1-9]', apt, re.M) is not None


def _holds_driver(root: Root) -> bool:
    """Whether unattended upgrades leave packages of the driver alone."""
    text = root.text_or("etc/apt/apt.conf.d/50unattended-upgrades") or ""
    block = re.search(r"Package-Blacklist\s*\{(.*?)\}", text, re.S)
    lines = block[1].splitlines() if block else []
    return any("nvidia" in line for line in lines if not line.strip().startswith("//"))


def parse_limits(text: str) -> Limits:
    """/proc/PID/limits."""
    found: dict[str, Limit] = {}
    for line in text.splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", line)
        if match:
            found[match[1]] = Limit(soft=_limit(match[2]), hard=_limit(match[3]))
    try:
        return Limits(
            memlock=found["Max locked memory"],
            nofile=found["Max open files"],
            stack=found["Max stack size"],
        )
    except KeyError as error:
        raise AbsentError(f"/proc/self/limits has no line {error}") from None


def _limit(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def kernel_module(root: Root) -> KernelModule:
    """The loaded NVIDIA module: its version, and whether it is the open one."""
    name = "proc/driver/nvidia/version"
    try:
        return parse_module(root.text(name))
    except AbsentError:
        version = root.text_or("sys/module/nvidia/version")
        if version is None:
            raise
        # Without the driver's own file the flavour is unknown; GSP-only parameters tell it apart.
        return KernelModule(
            version=version,
            is_open=root.exists("sys/module/nvidia/parameters/NVreg_OpenRmEnableUnsupportedGpus"),
        )


def parse_module(text: str) -> KernelModule:
    """/proc/driver/nvidia/version: `NVRM version: NVIDIA UNIX Open Kernel Module … 610.43.03 …`."""
    line = next((x for x in text.splitlines() if x.startswith("NVRM version")), "")
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", line)
    if version is None:
        raise AbsentError("/proc/driver/nvidia/version names no version")
    return KernelModule(version=version[1], is_open="Open Kernel Module" in line)
