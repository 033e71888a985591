"""The kernel, WSL, the processor, and Python."""

from __future__ import annotations

import re

from dsctl.model.facts import Python, System
from dsctl.paths import PROGRAMS
from dsctl.planning.constants import WSL_UTILIZATION
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check

#: Oldest kernel that the current open driver and its tests cover well (Ubuntu 22.04, Debian 12).
_OLDEST_KERNEL = (5, 15)


def _system(context: CheckContext) -> System:
    system = context.facts.system
    if system is None:
        raise SkipError(context.facts.why_absent("system"))
    return system


@check("host.wsl", needs=("system",))
def wsl(context: CheckContext) -> Outcome:
    """WSL: what it cannot do, and what has to be set differently there."""
    hardware, version = context.profile.hardware, _system(context).wsl
    if version is None:
        if hardware.wsl == "required":
            return fail(
                "this profile is made for WSL2, and this is not WSL",
                "use the profile without its concessions: `--profile single96-resident`",
            )
        return good("not WSL")
    if version == 1:
        return fail("this is WSL1, which has no GPU", "convert it: `wsl --set-version DISTRO 2`")
    if hardware.device == "cpu":
        return good("WSL2; nothing here depends on it")
    if hardware.wsl == "refused" or hardware.pinned_memory:
        return fail(
            "WSL2 does not let a process pin the memory this profile needs",
            "use `--profile single96-wsl`, or boot Linux itself",
            "pinning fails beyond about 0.5-1 GB in containers, and at half the memory elsewhere, "
            "whatever the limits say",
        )
    return _wsl_settings(context)


def _wsl_settings(context: CheckContext) -> Outcome:
    utilization = float(context.value("gpu_memory_utilization", 0.92))
    if "expandable_segments:True" in (context.env("PYTORCH_CUDA_ALLOC_CONF") or ""):
        return fail(
            "expandable segments do not work under WSL2",
            "take PYTORCH_CUDA_ALLOC_CONF out of the profile, or use `--profile single96-wsl`",
        )
    if utilization > WSL_UTILIZATION:
        return fail(
            f"gpu_memory_utilization {utilization:g}: {WSL_UTILIZATION} is the highest that is "
            "reported to start beside Windows",
            f"`--set gpu_memory_utilization={WSL_UTILIZATION}`",
            "Windows keeps about 1.3 GiB of the card; beyond that WDDM spills to host memory, 2-6 "
            "times slower and without a word",
        )
    memory = context.facts.memory
    note = f" WSL has {gib(memory.total_bytes)}" if memory is not None else ""
    return good(f"WSL2, and the profile minds it.{note}")


@check("host.kernel", needs=("system",))
def kernel(context: CheckContext) -> Outcome:
    """The kernel's age, and drivers it does not go with."""
    system = _system(context)
    match = re.match(r"(\d+)\.(\d+)", system.kernel)
    if match is None:
        raise SkipError(f"kernel {system.kernel!r} has no version")
    version = int(match[1]), int(match[2])
    where = f" in {system.virtual_machine}" if system.virtual_machine else ""
    if context.profile.hardware.device == "cuda" and version < _OLDEST_KERNEL:
        return warn(
            f"kernel {system.kernel} is older than what current drivers are tried on",
            "update to a distribution with kernel 5.15 or later",
        )
    driver = context.facts.nvml.driver_version if context.facts.nvml is not None else None
    if driver == "610.43.02" and version == (6, 11) and context.uses_base_cache:
        return warn(
            "kernel 6.11 with driver 610.43.02 rejects registering 2 GiB of host memory at once",
            "update the kernel or driver; the runtime pins in 256 MiB pieces meanwhile",
        )
    return good(f"kernel {system.kernel}{where}")


@check("host.cpu-features", needs=("cpu",))
def cpu_features(context: CheckContext) -> Outcome:
    """The engine's CPU build needs x86-64 with AVX2."""
    cpu = context.facts.cpu
    assert cpu is not None
    best = next(
        (
            name
            for feature, name in (
                ("amx_bf16", "AMX"),
                ("avx512_bf16", "AVX-512 BF16"),
                ("avx512f", "AVX-512"),
                ("avx2", "AVX2"),
            )
            if feature in cpu.features
        ),
        None,
    )
    what = f"{cpu.model}: {cpu.cores} cores, {best or 'no AVX2'}"
    if cpu.architecture not in ("x86_64", "AMD64"):
        return fail(f"{cpu.architecture} is not x86-64", "run it on an x86-64 machine", what)
    if context.profile.hardware.device == "cpu" and best is None:
        return fail(
            "this processor has no AVX2, which the engine's CPU build needs",
            "run it on a processor from 2015 or later; in a virtual machine choose CPU type `host`",
            what,
        )
    return good(what)


@check("host.python")
def python(context: CheckContext) -> Outcome:
    """Whether there is a Python that the engine's environment can be made with."""
    from dsctl.engine.environment import environment_for
    from dsctl.engine.lockfile import read_lock
    from dsctl.errors import ConfigError

    if context.engine == "docker":
        return good("the image brings its own")
    try:
        lock = read_lock(context.profile.engine.environment)
    except ConfigError as error:
        raise SkipError(error.message) from None
    if context.live and context.paths and environment_for(lock, context.paths).is_ready():
        return good("the engine's environment is made")
    if context.facts.pythons is None:
        raise SkipError(context.facts.why_absent("pythons"))
    found = {".".join(p.version.split(".")[:2]): p for p in context.facts.pythons}
    fitting = [version for version in lock.pythons if version in found]
    if fitting:
        return good(f"Python {fitting[0]} for the engine's environment")
    wanted = lock.pythons[-1]
    return fail(
        f"the engine needs Python {' or '.join(lock.pythons)}, none is on PATH",
        f"`sudo apt-get install python{wanted} python{wanted}-venv python{wanted}-dev` where the "
        "distribution has it (Ubuntu: from the deadsnakes PPA), `uv python install "
        f"{wanted}` or `pyenv install {wanted}`; `--engine docker` brings its own",
        f"found: {', '.join(sorted(found)) or 'none'}",
    )


@check("host.compiler", device="cuda")
def compiler(context: CheckContext) -> Outcome:
    """What compiles kernels at the first start: Triton wants gcc and Python.h, FlashInfer g++."""
    if context.engine == "docker":
        return good("the image brings its own")
    facts = context.facts
    if facts.compilers is None:
        raise SkipError(facts.why_absent("compilers"))
    missing = [name for name in ("gcc", "g++") if name not in facts.compilers]
    python, packages = _python_for(context), list(missing)
    if python is not None and python.headers is False:
        minor = ".".join(python.version.split(".")[:2])
        missing.append(f"Python.h of {python.path}")
        packages.append(f"python{minor}-dev")
    if missing:
        return fail(
            f"the engine compiles kernels when it starts, and lacks {' and '.join(missing)}",
            f"`sudo apt-get install {' '.join(packages)}`, or start with `--engine docker`, whose "
            "image brings them",
            f"programs are looked for in {', '.join(PROGRAMS)}",
        )
    if python is None or python.headers is None:
        return good("gcc and g++; whether Python.h is there cannot be told")
    return good("gcc, g++ and Python.h")


def _python_for(context: CheckContext) -> Python | None:
    """The interpreter that the engine's environment is made with: ours if it serves (the only one
    whose whole version is known), else the lock's first on PATH."""
    from dsctl.engine.lockfile import read_lock

    for minor in read_lock(context.profile.engine.environment).pythons:
        found = [
            p
            for p in context.facts.pythons or ()
            if p.version == minor or p.version.startswith(f"{minor}.")
        ]
        if found:
            return max(found, key=lambda p: p.version.count("."))
    return None


@check("host.unattended-upgrades", needs=("system",), device="cuda")
def unattended_upgrades(context: CheckContext) -> Outcome:
    """Upgrades at night that change the driver's library under the running module."""
    system = _system(context)
    if not system.unattended_upgrades:
        return good("no unattended upgrades")
    if system.upgrades_hold_driver:
        return good("unattended upgrades leave the driver alone")
    return warn(
        "unattended upgrades may replace the driver while it runs",
        'add "nvidia-.*"; "libnvidia-.*"; "cuda-.*"; to Unattended-Upgrade::Package-Blacklist in '
        "/etc/apt/apt.conf.d/50unattended-upgrades",
        "after such an upgrade every new engine fails until the next reboot",
    )
