"""Host memory: does the start fit, and what stands behind it when it does not."""

from __future__ import annotations

from dsctl.model.facts import Memory, SwapDevice, SwapKind
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check

_GIB = 1 << 30
#: Below this, swap in use is what any long-running desktop has.
_SWAP_NOISE_BYTES = 1 * _GIB
#: The peak with this much room above it needs no swap to stand behind it.
_COMFORT = 1.25


def _memory(context: CheckContext) -> Memory:
    memory = context.facts.memory
    if memory is None:
        raise SkipError(context.facts.why_absent("memory"))
    return memory


def _limited(memory: Memory, value: int) -> int:
    return value if memory.limit_bytes is None else min(value, memory.limit_bytes)


@check("host.memory-total", needs=("memory",))
def memory_total(context: CheckContext) -> Outcome:
    """Whether this machine has the memory at all."""
    memory, need = _memory(context), context.host_peak_bytes
    total = _limited(memory, memory.total_bytes)
    which = "this control group may use" if total < memory.total_bytes else "the machine has"
    made_for = context.profile.hardware.host_memory_bytes
    if need <= total < 0.95 * made_for:
        return warn(
            f"{which} {gib(total)}, the profile is made for {gib(made_for)}",
            "close what else takes memory; without it packs are read from the disk again and again",
        )
    if total >= need:
        return good(f"{gib(total)} of memory, {gib(need)} needed at the worst moment")
    remedy = "choose a profile that keeps less in host memory (`dsctl plan --profile auto`)"
    if context.facts.wsl:
        remedy = (
            "give WSL more than the half of the memory it takes by default: in Windows write "
            f"`[wsl2]` and `memory={round(need / _GIB) + 8}GB` to %UserProfile%\\.wslconfig, then "
            "`wsl --shutdown`"
        )
    elif total < memory.total_bytes:
        remedy = f"raise the memory limit of the control group dsctl runs in to {gib(need)}"
    return fail(f"{which} {gib(total)}, a start needs {gib(need)}", remedy)


@check("host.memory-available", needs=("memory",))
def memory_available(context: CheckContext) -> Outcome:
    """Whether the memory is free now; page cache counts, pinned memory does not come back."""
    memory = _memory(context)
    available = _limited(memory, memory.available_bytes)
    peak, steady = context.host_peak_bytes, context.host_steady_bytes
    swap = memory.swap_free_bytes
    free_it = (
        "end what holds memory (`ps aux --sort=-rss | head`), or wait for it; "
        f"{gib(max(0, peak - available))} more are needed"
    )
    detail = f"page cache of {gib(memory.cached_bytes)} counts as available"
    if context.pinned_bytes:
        detail += f"; {gib(context.pinned_bytes)} of it will be pinned and stay taken"
    if available < max(steady, context.pinned_bytes) or available + swap < peak:
        return fail(f"{gib(available)} available, a start needs {gib(peak)}", free_it, detail)
    if available < peak:
        return warn(
            f"{gib(available)} available, the load peak of {gib(peak)} goes into swap",
            free_it,
            f"{detail}; swapping while loading turns 5 minutes into an hour",
        )
    if available < peak * 1.1:
        return warn(f"{gib(available)} available for a load peak of {gib(peak)}", free_it, detail)
    return good(f"{gib(available)} available, {gib(peak)} needed at the worst moment", detail)


@check("host.swap", needs=("swap", "memory"))
def swap(context: CheckContext) -> Outcome:
    """Whether swap can catch the load peak, and whether it is at work already."""
    devices, memory = context.facts.swap or (), _memory(context)
    available, peak = _limited(memory, memory.available_bytes), context.host_peak_bytes
    if not devices:
        return _no_swap(available, peak)
    size = sum(d.size_bytes for d in devices)
    used = sum(d.used_bytes for d in devices)
    listed = ", ".join(
        f"{d.path} ({d.kind}, {gib(d.size_bytes)}, {gib(d.used_bytes)} used)" for d in devices
    )
    if used >= _SWAP_NOISE_BYTES:
        return _already_swapping(used, size, available, peak, listed)
    short = peak - available
    if short > size - used:
        return fail(
            f"swap of {gib(size)} cannot catch the load peak, {gib(short)} above what is available",
            f"add {gib(short + 4 * _GIB)} of swap: `dsctl preflight --fix`",
            listed,
        )
    return _kind_of_swap(devices, short, available, peak, listed)


def _no_swap(available: int, peak: int) -> Outcome:
    if available >= peak * _COMFORT:
        return good(f"no swap, and {gib(available)} available for a peak of {gib(peak)}")
    enough = max(8 * _GIB, peak - available + 8 * _GIB)
    make = f"make a swap file of {gib(enough)}: `dsctl preflight --fix` shows the commands and asks"
    if available < peak:
        return fail(
            f"no swap at all, and the load peak is {gib(peak - available)} above what is available",
            make,
            "the kernel will kill the engine while it loads",
        )
    return warn(f"no swap at all behind a load peak of {gib(peak)}", make)


def _already_swapping(used: int, size: int, available: int, peak: int, listed: str) -> Outcome:
    summary = f"{gib(used)} of swap is in use before anything is started"
    remedy = (
        "end what fills the memory, then bring the pages back: "
        "`sudo swapoff -a && sudo swapon -a` (needs that much free memory)"
    )
    detail = f"{listed}; a start that swaps takes an hour instead of 5 minutes, and serves at 8-10 "
    detail += "tok/s instead of 40-60"
    if available < peak or used > 0.8 * size:
        return fail(summary, remedy, detail)
    return warn(summary, remedy, detail)


def _kind_of_swap(
    devices: tuple[SwapDevice, ...], short: int, available: int, peak: int, listed: str
) -> Outcome:
    leans = short > 0 or available < peak * _COMFORT
    if leans and all(d.kind is SwapKind.ZRAM for d in devices):
        return warn(
            "the only swap is zram, which takes memory to give memory",
            "add a swap file on an SSD: `dsctl preflight --fix`",
            f"{listed}; quantized weights hardly compress",
        )
    if leans and any(d.rotational for d in devices):
        return warn(
            "swap lies on a spinning disk",
            "put a swap file on an SSD (`dsctl preflight --fix`), then `sudo swapoff` the slow one",
            listed,
        )
    return good(f"swap stands behind the peak: {listed}")


@check("host.memory-pressure", needs=("pressure",))
def memory_pressure(context: CheckContext) -> Outcome:
    """PSI: how much of the time tasks wait for memory right now."""
    pressure = context.facts.pressure
    assert pressure is not None
    text = f"some {pressure.some_avg10:g} %, full {pressure.full_avg10:g} % over 10 s"
    remedy = "see who: `ps aux --sort=-rss | head`; end it or wait until the pressure is gone"
    if pressure.full_avg10 >= 10:
        return fail(f"the machine is thrashing: {text}", remedy)
    if pressure.full_avg10 >= 1 or pressure.some_avg10 >= 10 or pressure.full_avg60 >= 5:
        return warn(f"tasks wait for memory: {text}", remedy)
    return good(f"no memory pressure: {text}")


@check("host.numa", needs=("numa",))
def numa(context: CheckContext) -> Outcome:
    """Whether the nodes this process may use hold what is needed, and are populated alike."""
    found = context.facts.numa
    assert found is not None
    nodes = found.nodes
    listed = ", ".join(f"node {n.index}: {gib(n.total_bytes)}" for n in nodes)
    need = context.host_peak_bytes
    if found.allowed is not None:
        allowed = [n for n in nodes if n.index in found.allowed]
        room = sum(n.total_bytes for n in allowed)
        if len(allowed) < len(nodes) and room < need:
            return fail(
                f"this process may use {gib(room)} on node "
                f"{', '.join(str(n.index) for n in allowed)} only, a start needs {gib(need)}",
                "start without `numactl -m` (use `numactl --interleave=all` or `--preferred`), "
                "and look at cpuset.mems",
                listed,
            )
    if len(nodes) == 1:
        return good(f"one node with {gib(nodes[0].total_bytes)}")
    sizes = [n.total_bytes for n in nodes]
    if min(sizes) == 0:
        return warn(
            "a NUMA node has no memory",
            "put modules into its slots, or reseat them; until then `numactl --interleave=all`",
            listed,
        )
    if max(sizes) > 1.15 * min(sizes):
        small = min(nodes, key=lambda n: n.total_bytes)
        return warn(
            f"node {small.index} has {gib(max(sizes) - small.total_bytes)} less memory than its "
            "peer: channels are empty or dead",
            f"`sudo dmidecode -t memory | grep -E 'Locator|Size'` names the slots that answer "
            f"nothing on socket {small.index}: reseat or replace those modules",
            f"{listed}; a missing channel also takes its share of the bandwidth",
        )
    return good(f"{len(nodes)} nodes alike ({listed})")


@check("host.memlock", needs=("limits",), device="cuda")
def memlock(context: CheckContext) -> Outcome:
    """Whether enough memory may be locked for pinned copies and collectives."""
    limits = context.facts.limits
    assert limits is not None
    hard = limits.memlock.hard
    if hard is None:
        return good("locked memory is unlimited")
    need = context.pinned_bytes
    remedy = (
        "raise it: `dsctl preflight --fix` (a drop-in in /etc/security/limits.d), then log in again"
    )
    if context.engine == "docker":
        return good("the container sets its own limit (memlock -1)")
    if need and hard < need:
        return warn(
            f"{gib(hard)} may be locked, {gib(need)} will be pinned",
            remedy,
            "pinning through the driver mostly ignores this limit; registering and mlock do not",
        )
    if context.ranks > 1 and hard < 1 * _GIB:
        return warn(f"only {gib(hard)} may be locked; collectives register buffers", remedy)
    return good(f"{gib(hard)} may be locked")


@check("host.shm", needs=("shm",))
def shm(context: CheckContext) -> Outcome:
    """/dev/shm carries the engine's queues, and the collectives where peer access is off."""
    found = context.facts.shm
    assert found is not None
    if context.engine == "docker":
        return good("the container gets its own (shm_size)")
    planned = context.plan.host.shm_bytes if context.plan is not None else 0
    need = planned or max(1, context.ranks) * (_GIB // 2)
    if found.free_bytes >= need:
        return good(f"{gib(found.free_bytes)} free in /dev/shm")
    remedy = f"`sudo mount -o remount,size={max(2, round(2 * need / _GIB))}G /dev/shm`"
    if found.total_bytes < need:
        return fail(f"/dev/shm has {gib(found.total_bytes)}, {gib(need)} needed", remedy)
    return warn(
        f"{gib(found.free_bytes)} free in /dev/shm, {gib(need)} needed",
        f"remove what dead processes left there (`ls -l /dev/shm`), or {remedy}",
    )
