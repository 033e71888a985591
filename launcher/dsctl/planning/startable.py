"""What this version of dsctl can start, and what a profile still lacks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsctl.model.profile import Profile, Status


@dataclass(frozen=True)
class Lack:
    """Why `dsctl up` refuses a profile: in a few words, in a sentence, and what to do instead."""

    short: str
    why: str
    remedy: str


#: What our plugin refuses on a GPU, whose steps cannot be repeated yet, by knob: the value that
#: asks for it, None for any (`dsruntime.kernels.possible`).
_CPU_ONLY: dict[str, Any] = {
    "experts": "w2-cache",
    "mapped_layers": None,
    "gate_threshold": None,
    "prefill_policy": "ensure",
}


def lack_of(profile: Profile) -> Lack | None:
    """What keeps `dsctl up` from starting the profile on any machine; None where nothing does."""
    if profile.status is Status.UNSUPPORTED:
        return Lack("unsupported", profile.status_reason, "choose another: `dsctl profiles list`")
    if profile.hardware.device == "cpu":
        return None
    for knob, refused in _CPU_ONLY.items():
        value = profile.value(knob)
        if value not in (None, "") and refused in (None, value):
            return Lack(
                "not yet",
                f"{knob}={value} needs steps that can be repeated, which the engine plugin cannot "
                "do on a GPU yet",
                f"`dsctl plan --profile {profile.id}` works; on one card `single96-resident` does "
                "without",
            )
    return None
