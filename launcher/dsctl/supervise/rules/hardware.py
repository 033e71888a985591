"""What the driver and the cards report: Xids, heat, a driver that does not answer."""

from __future__ import annotations

from dsctl.model.sample import Action, Advice, Level, Verdict, Window, Xid
from dsctl.progress import human_seconds
from dsctl.supervise.rules.context import Context

#: Xid -> cause; the others are `gpu.xid`. Numbers and meanings: NVIDIA's "XID Errors" guide.
_CAUSES = {
    79: "gpu.fell-off-bus",
    119: "gpu.gsp-timeout",
    120: "gpu.gsp-timeout",
}
#: After these the card works no more without a reset or a reboot: watchdog, double-bit error, fell
#: off the bus, uncontained error, GSP, and the recovery actions the driver itself asks for.
_FATAL = frozenset({8, 48, 62, 74, 79, 95, 119, 120, 140, 143, 154})
#: The program's own faults (illegal access, channel torn down with it): the card is well.
_OF_PROGRAM = frozenset({13, 31, 43, 45})
_HEAT_S = 60.0
_HEAT = ("thermal-hardware", "thermal-software")


def xids(window: Window, context: Context) -> Verdict | None:
    """The gravest Xid of the window."""
    last = window.last
    if last is None or not last.xids:
        return None
    since = window.samples[0].t
    new = [x for x in last.xids if x.t >= since]
    if not new:
        return None
    gravest = max(new, key=lambda x: (x.code in _FATAL, x.code not in _OF_PROGRAM, x.t))
    fatal = gravest.code in _FATAL
    return Verdict(
        rule="xid",
        level=Level.ACT if fatal else Level.WARN,
        summary=f"the driver reported Xid {gravest.code} on {gravest.bdf}: {_what(gravest)}",
        numbers={"xid": float(gravest.code), "count": float(len(new))},
        cause=_CAUSES.get(gravest.code, "gpu.xid"),
        advice=Advice(
            action=Action.STOP,
            why="after this Xid the card works no more until it is reset",
            remedy="reboot; if it comes again look at power, riser and cooling of that card",
        )
        if fatal
        else None,
    )


def _what(xid: Xid) -> str:
    if xid.code in _OF_PROGRAM:
        return "a fault of the program, the card is well"
    _, _, said = xid.text.partition(f"): {xid.code},")
    return said.strip()[:120] or "see `dmesg`"


def heat(window: Window, context: Context) -> Verdict | None:
    """A card that has throttled for heat all through the last minute."""
    span = window.recent(_HEAT_S)
    if (
        len(span.samples) < 3
        or span.span_s < 0.8 * _HEAT_S
        or not all(s.gpus for s in span.samples)
    ):
        return None
    for card in span.samples[-1].gpus or ():
        same = [g for s in span.samples for g in s.gpus or () if g.index == card.index]
        if len(same) == len(span.samples) and all(
            any(word in _HEAT for word in g.throttled_by) for g in same
        ):
            at = f" at {card.temperature_c:.0f} °C" if card.temperature_c is not None else ""
            return Verdict(
                rule="heat",
                level=Level.WARN,
                summary=f"GPU {card.index} throttles for heat{at}, for "
                f"{human_seconds(span.span_s)}: slower, not wrong",
                numbers={"temperature_c": card.temperature_c or 0.0},
                cause="gpu.thermal",
                advice=Advice(
                    action=Action.WAIT,
                    why="it cools down when it gets air",
                    remedy="case fans often follow the CPU only: raise them, or lower the card's "
                    "power limit (`nvidia-smi -pl WATTS`)",
                ),
            )
    return None


def driver_silent(window: Window, context: Context) -> Verdict | None:
    """NVML hangs or fails where it answered before."""
    last = window.last
    if last is None or last.gpus is not None:
        return None
    if not any(s.gpus for s in window.samples):
        return None
    why = last.missing.get("gpus", "no answer")
    lost = "lost" in why.lower()
    return Verdict(
        rule="driver",
        level=Level.WARN,
        summary=f"the GPU driver answers no more: {why}",
        cause="gpu.fell-off-bus" if lost else None,
        advice=Advice(
            action=Action.WAIT,
            why="the engine may still compute; it is watched without the cards' numbers",
            remedy="see `dmesg | grep -i nvrm`; a driver that stays silent needs a reboot",
        ),
    )
