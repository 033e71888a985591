"""The links: what is left of them along the whole path, and whom that hurts."""

from __future__ import annotations

from dataclasses import dataclass

from dsctl.model.facts import Gpu
from dsctl.preflight.outcome import Outcome, SkipError, gib, good, warn, worst
from dsctl.preflight.registry import CheckContext, check

#: Host to device over PCIe 5.0 x16, measured by the reference runtime (bytes/s).
_FULL_BYTES_PER_S = 51.6 * (1 << 30)
_FULL = 32.0 * 16
#: A card that draws this share of its limit is awake; its link is then at its real speed.
_AWAKE = 0.3
#: The speed that an idle card falls to.
_IDLE = 2.5
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_OF_GENERATION = {generation: speed for speed, generation in _SPEEDS.items()}


@dataclass(frozen=True)
class Link:
    """A GPU's way to the root: the least of all hops. Speeds in GT/s.

    `speed` is what the way can do, `now` what the card's own link does this moment.
    """

    gpu: Gpu
    own_max: float
    speed: float
    now: float | None
    width: int
    max_width: int
    culprit: str

    @property
    def bytes_per_s(self) -> float:
        """Copy bandwidth that is left."""
        return _FULL_BYTES_PER_S * self.speed * self.width / _FULL

    @property
    def text(self) -> str:
        """`Gen4 ×16`."""
        return f"Gen{_SPEEDS.get(self.speed, '?')} ×{self.width}"

    @property
    def share(self) -> str:
        """What is left, for people."""
        return f"{self.bytes_per_s / (1 << 30):.1f} of 51.6 GiB/s"


def link_of(context: CheckContext, gpu: Gpu) -> Link:
    """The link of a GPU from sysfs, else from what NVML says of the card alone.

    Raises:
        SkipError: neither knows it.
    """
    pcie = context.facts.pcie
    hops = pcie.path(gpu.bdf) if pcie is not None and gpu.bdf else ()
    card = hops[0] if hops else None
    # NVML's maximum is the least of card and slot (nvmlDeviceGetMaxPcieLinkGeneration).
    slot = _OF_GENERATION.get(gpu.pcie_gen_max or 0)
    own = max((card.max_link_speed if card else None) or 0, slot or 0, _of_family(gpu))
    now = (card.link_speed if card else None) or _OF_GENERATION.get(gpu.pcie_gen_current or 0)
    widths = {h.bdf: h.link_width for h in hops if h.link_width}
    if not widths and gpu.pcie_width_current:
        widths = {gpu.bdf or "": gpu.pcie_width_current}
    if not own or not widths:
        raise SkipError(f"GPU {gpu.index}: neither sysfs nor the driver tells its link")
    speeds = {h.bdf: h.max_link_speed for h in hops[1:] if h.max_link_speed}
    slowest = min(speeds, key=lambda b: speeds[b] or 0, default=None)
    speed = min(own, slot or own, (speeds[slowest] if slowest else None) or own)
    if slowest is None and now is not None and _IDLE < now < speed:
        speed = now  # nothing is known of the slot, and a card that saves power goes lower
    # A virtual port may claim less than the card does this moment; the card is right.
    speed = max(speed, now or 0)
    narrowest = min(widths, key=lambda b: widths[b] or 0)
    limits = slowest is not None and (speeds[slowest] or own) <= speed < own
    return Link(
        gpu=gpu,
        own_max=own,
        speed=speed,
        now=now,
        width=widths[narrowest] or 16,
        max_width=(card.max_link_width if card else None) or gpu.pcie_width_max or 16,
        culprit=slowest if limits and slowest else "its slot",
    )


def _of_family(gpu: Gpu) -> float:
    """What the card itself can do, where its family tells: Blackwell cards are PCIe 5.0."""
    return 32.0 if (gpu.compute_capability or (0, 0))[0] >= 10 else 0.0


def _awake(gpu: Gpu) -> bool:
    if gpu.power_draw_w is None or gpu.power_limit_w is None:
        return False
    return gpu.power_draw_w > _AWAKE * gpu.power_limit_w


@check("pcie.link-speed", needs=("nvml",), device="cuda")
def link_speed(context: CheckContext) -> Outcome:
    """Generation of the whole path. An idle card lowers its own, which is no finding."""

    def judge(gpu: Gpu) -> Outcome:
        link = link_of(context, gpu)
        what = f"GPU {gpu.index}: the path to it is {link.text}, {link.share}"
        if _awake(gpu) and link.now is not None and link.now < link.speed:
            return _slow(
                context,
                f"GPU {gpu.index} is at work and its link stays at {link.now:g} GT/s "
                f"of {link.speed:g}",
                "set the slot's speed in the BIOS from Auto to Gen5 (or Gen4 with a riser), reseat "
                "the card, and look for `AER` in `sudo dmesg`",
                link.bytes_per_s * link.now / link.speed,
            )
        if link.speed < link.own_max:
            return _slow(
                context,
                f"{what}; the card could do {link.own_max:g} GT/s, {link.culprit} does "
                f"{link.speed:g}",
                f"move the card to a slot of the processor's own Gen{_SPEEDS.get(link.own_max, 5)} "
                "lanes, without riser or older switch, and set the slot to that speed in the BIOS",
                link.bytes_per_s,
            )
        idle = link.now is not None and link.now < link.speed
        return good(what + (" (idle now, at a lower speed to save power)" if idle else ""))

    return worst(map(judge, context.used_gpus), good("no GPU"))


def _slow(context: CheckContext, summary: str, remedy: str, left: float) -> Outcome:
    """Hurts whoever moves experts or activations over the link; the resident base stays put."""
    if context.uses_base_cache:
        part = left / _FULL_BYTES_PER_S
        return warn(
            summary,
            remedy,
            "this profile fetches missing experts over the link: a miss takes "
            f"{1 / part:.1f} times as long as on Gen5 ×16",
        )
    if context.ranks > 1:
        return warn(summary, remedy, "every layer's all-reduce of both cards goes over it")
    return good(summary, "weights are resident: only loading is slower")


@check("pcie.link-width", needs=("nvml",), device="cuda")
def link_width(context: CheckContext) -> Outcome:
    """Lanes. Unlike the speed, an idle card keeps its width: fewer lanes are fewer lanes."""

    def judge(gpu: Gpu) -> Outcome:
        link = link_of(context, gpu)
        text = f"GPU {gpu.index} has ×{link.width} of ×{link.max_width}"
        if link.width >= link.max_width:
            return good(f"GPU {gpu.index} has all ×{link.width} lanes")
        summary = f"{text}: {link.share}"
        remedy = (
            "use a slot with sixteen lanes from the processor (an M.2 disk or a second card may "
            "have halved this one; look at the board's manual), and reseat the card"
        )
        outcome = _slow(context, summary, remedy, link.bytes_per_s)
        if link.width <= 4 and not outcome.remedy:
            seconds = 80 * (1 << 30) / link.bytes_per_s
            return warn(summary, remedy, f"loading 80 GiB takes at least {seconds:.0f} s")
        return outcome

    return worst(map(judge, context.used_gpus), good("no GPU"))


@check("pcie.resizable-bar", needs=("nvml",), device="cuda")
def resizable_bar(context: CheckContext) -> Outcome:
    """Whether the processor and peers can address the card's whole memory."""

    def judge(gpu: Gpu) -> Outcome:
        total, bar = gpu.memory_total_bytes, gpu.bar1_total_bytes
        if total is None or bar is None:
            raise SkipError(f"GPU {gpu.index} does not tell its BAR1")
        text = f"GPU {gpu.index}: BAR1 is {gib(bar)} of {gib(total)}"
        if bar >= 0.9 * total:
            return good(text)
        remedy = (
            "turn on Above 4G Decoding and Resizable BAR in the BIOS; on a workstation card also "
            "set the display mode to headless (`displaymodeselector`)"
        )
        if context.ranks > 1:
            return warn(f"{text}; peers reach only that window", remedy)
        return good(text, "one card alone does not need it")

    return worst(map(judge, context.used_gpus), good("no GPU"))
