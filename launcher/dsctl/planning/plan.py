"""The planner: a profile on a machine, answered before anything is started."""

from __future__ import annotations

from pathlib import Path

from dsctl.model.plan import (
    DiskPlan,
    GpuPlan,
    HostPlan,
    KvPlan,
    Plan,
    PoolPlan,
    Verdict,
)
from dsctl.model.profile import Profile, Status
from dsctl.planning import basecache, speed
from dsctl.planning import constants as k
from dsctl.planning.autopool import with_pool
from dsctl.planning.budget import Timeline, timeline, weights_of
from dsctl.planning.cards import chosen
from dsctl.planning.demand import Build, Demand, demand_of
from dsctl.planning.geometry import Geometry, geometry_of
from dsctl.planning.host import disk_plan, host_plan
from dsctl.planning.kvcache import KvTable, in_flight_tokens, kv_table
from dsctl.planning.layers import parse_layers
from dsctl.planning.machine import Machine, machine_for
from dsctl.planning.quality import quality_of
from dsctl.planning.units import show


def make_plan(
    profile: Profile,
    machine: Machine | None = None,
    *,
    checkpoint: Path | None = None,
    build: Build = "pack",
    have_checkpoint: bool | None = None,
    have_pack: bool | None = None,
) -> Plan:
    """The budget of `profile` on `machine` (default: the machine the profile is made for).

    `checkpoint` is the directory the geometry is read from; without one the shipped facts serve.
    `have_checkpoint` and `have_pack` say what is on the disk already; None is unknown, and then a
    disk too small for everything makes the plan tight instead of failing it.

    Raises:
        ConfigError: the checkpoint is damaged, or the profile leaves open what a plan needs.
    """
    machine = machine or machine_for(profile)
    geometry = geometry_of(checkpoint, profile.model.geometry)
    table = kv_table(profile.model.geometry, profile.engine.version, profile.hardware.device)
    demand = demand_of(profile, build=build)
    basecache.require_sense(
        profile.id, demand, geometry, parse_layers(profile.value("mapped_layers", ""))
    )
    there = True if geometry.source.startswith("safetensors") else have_checkpoint
    return plan_for(profile, demand, geometry, table, machine, there=there, have_pack=have_pack)


def plan_for(
    profile: Profile,
    demand: Demand,
    geometry: Geometry,
    table: KvTable,
    machine: Machine,
    *,
    there: bool | None = None,
    have_pack: bool | None = None,
) -> Plan:
    """The plan of resolved inputs. Pure."""
    reasons: list[str] = []
    if demand.device == "cuda":
        cards = chosen(profile.hardware, machine.cards, demand.ranks)
        machine = machine.model_copy(update={"cards": cards})
    verdicts = [_judge_class(profile, machine, reasons), basecache.judge(geometry, demand, reasons)]
    lacking = demand.ranks - len(machine.cards) if demand.device == "cuda" else 0
    if lacking > 0:  # show what it would take of a card, even where there is none
        verdicts.append(Verdict.DOES_NOT_FIT)
        reasons.append(f"needs {_count(demand.ranks)}, there {_are(len(machine.cards))}")
        others = machine_for(profile).cards[len(machine.cards) : demand.ranks]
        machine = machine.model_copy(update={"cards": (*machine.cards, *others)})
    demand = with_pool(demand, geometry, table, machine)
    gpus, lines = _gpus(demand, geometry, table, machine)
    for gpu, line in zip(gpus, lines, strict=True):
        verdicts.append(_judge_gpu(gpu, line, demand, reasons))
    kv_bytes = lines[0].steady.resident.get("kv_cache", 0) if lines else demand.kv_bytes or 0
    kv = _kv(demand, table, kv_bytes)
    if not lines and kv_bytes < kv.needed_bytes:
        verdicts.append(Verdict.DOES_NOT_FIT)
        reasons.append(_kv_reason(demand, kv_bytes, kv.needed_bytes))
    host = host_plan(geometry, demand, machine, kv_bytes)
    verdicts.append(_judge_host(host, demand, machine, reasons))
    disk = disk_plan(
        geometry, demand, machine, have_checkpoint=bool(there), have_pack=bool(have_pack)
    )
    verdicts.append(_judge_disk(disk, known=None not in (there, have_pack), reasons=reasons))
    weights = weights_of(geometry, demand)
    slots = speed.pool_slots(geometry, demand) if demand.store != "native" else 0
    return Plan(
        profile=profile.id,
        verdict=_worst(verdicts),
        gpus=tuple(gpus),
        host=host,
        disk=disk,
        kv=kv,
        correction_pool=PoolPlan(slots=slots, slot_bytes=speed.slot_bytes(geometry, demand))
        if slots
        else None,
        time=speed.time_plan(geometry, demand, machine, weights),
        speed=speed.speed_plan(geometry, demand, machine, weights),
        quality=quality_of(profile).text,
        reasons=tuple(reasons),
        assumed_machine=machine.assumed,
        inputs={"geometry": geometry.source, "kv_table": table.engine, "build": demand.build},
    )


def _gpus(
    demand: Demand, geometry: Geometry, table: KvTable, machine: Machine
) -> tuple[list[GpuPlan], list[Timeline]]:
    gpus, lines = [], []
    if demand.device == "cpu":
        return [], []
    for card in machine.cards[: demand.ranks]:
        allowed = int(card.usable_bytes * demand.gpu_memory_utilization)
        line = timeline(geometry, demand, table, min(allowed, card.capacity_bytes))
        lines.append(line)
        gpus.append(
            GpuPlan(
                index=card.index,
                name=card.name,
                capacity_bytes=card.capacity_bytes,
                components=line.steady.resident,
                steady_bytes=line.steady.resident_bytes,
                load_peak_bytes=line.peak.peak_bytes,
                peak_phase=line.peak.name,
                timeline=line.phases,
            )
        )
    return gpus, lines


def _judge_gpu(gpu: GpuPlan, line: Timeline, demand: Demand, reasons: list[str]) -> Verdict:
    where = f"GPU {gpu.index}"
    kv = line.steady.resident.get("kv_cache", 0)
    others = gpu.steady_bytes - kv
    if others > gpu.capacity_bytes:
        reasons.append(
            f"{where}: weights, pool and workspaces alone take {show(others)}, the card has "
            f"{show(gpu.capacity_bytes)}"
        )
        return Verdict.DOES_NOT_FIT
    if kv < line.kv_needed_bytes:
        reasons.append(f"{where}: {_kv_reason(demand, kv, line.kv_needed_bytes)}")
        return Verdict.DOES_NOT_FIT
    over = gpu.load_peak_bytes - gpu.capacity_bytes
    if over > 0:
        advice = ""
        if demand.pool_first and demand.pool_bytes:
            advice = "; `--set pool_allocation=last` takes the pool out of the peak"
        reasons.append(
            f"{where}: the load peak ({line.peak.name}) is {show(over)} above the "
            f"{show(gpu.capacity_bytes)} the card has{advice}"
        )
        return Verdict.DOES_NOT_FIT
    left = gpu.capacity_bytes - gpu.steady_bytes - line.late_bytes
    if left < 0:
        reasons.append(
            f"{where}: once it serves, {show(line.late_bytes)} must stay free for autotuning and "
            f"the first long prompt, and {show(-left)} of that is missing; lower "
            "gpu_memory_utilization or max_num_batched_tokens"
        )
        return Verdict.DOES_NOT_FIT
    if left < k.COMFORT_BYTES:
        reasons.append(f"{where}: only {show(left)} left beyond what a first long prompt needs")
        return Verdict.TIGHT
    return Verdict.FITS


def _judge_disk(disk: DiskPlan, *, known: bool, reasons: list[str]) -> Verdict:
    if disk.free_bytes is None or disk.missing_bytes <= disk.free_bytes:
        return Verdict.FITS
    parts = ", ".join(f"{name} {show(size)}" for name, size in disk.components.items())
    unless = "" if known else " unless some of it is there already"
    reasons.append(
        f"disk: {show(disk.missing_bytes)} to be written{unless}, {show(disk.free_bytes)} free "
        f"({parts})"
    )
    return Verdict.DOES_NOT_FIT if known else Verdict.TIGHT


def _count(cards: int) -> str:
    return f"{cards} GPU" if cards == 1 else f"{cards} GPUs"


def _are(cards: int) -> str:
    return "is 1" if cards == 1 else f"are {cards or 'none'}"


def _kv_reason(demand: Demand, have: int, need: int) -> str:
    return (
        f"the KV cache gets {show(have)}, and {show(need)} are needed for one window of "
        f"{demand.max_model_len:,} tokens and {demand.max_num_seqs} sequence(s)"
    )


def _judge_host(host: HostPlan, demand: Demand, machine: Machine, reasons: list[str]) -> Verdict:
    over = host.load_peak_bytes - host.available_bytes
    if over > 0:
        reasons.append(
            f"host memory: {show(host.load_peak_bytes)} needed, {show(host.available_bytes)} "
            "available; what is missing would go to swap"
        )
        return Verdict.DOES_NOT_FIT
    if machine.wsl and host.pinned_bytes > k.WSL_PINNED_BYTES:
        reasons.append(
            f"WSL2 pins about {show(k.WSL_PINNED_BYTES)} at most, {show(host.pinned_bytes)} are "
            "needed; use single96-wsl"
        )
        return Verdict.DOES_NOT_FIT
    if machine.wsl and demand.ranks and demand.gpu_memory_utilization > k.WSL_UTILIZATION:
        reasons.append(
            f"gpu_memory_utilization {demand.gpu_memory_utilization:g} under WSL2: "
            f"{k.WSL_UTILIZATION} is the highest that is reported to start"
        )
        return Verdict.TIGHT
    if -over < host.available_bytes // 20:
        reasons.append(f"host memory: only {show(-over)} left at the load peak")
        return Verdict.TIGHT
    return Verdict.FITS


def _judge_class(profile: Profile, machine: Machine, reasons: list[str]) -> Verdict:
    """What no byte count says: compute capability, WSL, a profile that cannot be run at all."""
    need = profile.hardware
    if profile.status is Status.UNSUPPORTED:
        reasons.append(f"unsupported: {profile.status_reason}")
        return Verdict.DOES_NOT_FIT
    for card in machine.cards[: need.gpus]:
        if need.compute_capability and card.compute_capability not in (
            None,
            need.compute_capability,
        ):
            wanted = ".".join(map(str, need.compute_capability))
            has = ".".join(map(str, card.compute_capability or ()))
            reasons.append(f"GPU {card.index} has compute capability {has}, {wanted} is needed")
            return Verdict.DOES_NOT_FIT
    if need.wsl == "refused" and machine.wsl:
        reasons.append("this profile does not run under WSL2; single96-wsl does")
        return Verdict.DOES_NOT_FIT
    if need.wsl == "required" and not machine.wsl:
        reasons.append("this profile is for WSL2; on plain Linux single96-resident is better")
        return Verdict.DOES_NOT_FIT
    return Verdict.FITS


def _kv(demand: Demand, table: KvTable, kv_bytes: int) -> KvPlan:
    in_flight = in_flight_tokens(
        demand.max_num_batched_tokens, async_scheduling=demand.async_scheduling
    )
    tokens, concurrency = table.capacity(kv_bytes, demand.max_model_len, in_flight)
    return KvPlan(
        bytes_per_token=table.request_bytes(demand.max_model_len, in_flight) / demand.max_model_len,
        tokens=tokens,
        concurrency_at_max_len=concurrency,
        needed_bytes=table.needed_bytes(demand.max_model_len, demand.max_num_seqs, in_flight),
    )


def _worst(verdicts: list[Verdict]) -> Verdict:
    order = (Verdict.DOES_NOT_FIT, Verdict.TIGHT, Verdict.FITS)
    return next(v for v in order if v in verdicts)
