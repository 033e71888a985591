"""What this version of dsctl can start, and what a profile still lacks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dsctl.model.profile import Profile, Status


@dataclass(frozen=True)
class Lack:
    """Why `dsctl up` refuses a profile: in a few words, in a sentence, and what to do instead."""

    short: str
    why: str
    remedy: str


def lack_of(profile: Profile) -> Lack | None:
    """What keeps `dsctl up` from starting the profile on any machine; None where nothing does."""
    plan = f"`dsctl plan --profile {profile.id}` and `dsctl profiles show {profile.id}` work"
    if profile.status is Status.UNSUPPORTED:
        return Lack("unsupported", profile.status_reason, "choose another: `dsctl profiles list`")
    experts = profile.value("experts", "native")
    on_cpu = profile.hardware.device == "cpu"
    if experts != "native" and not on_cpu:
        return Lack(
            "no 2-bit tiers yet",
            "its 2-bit experts need tiers that this version's engine plugin has on the CPU only",
            plan,
        )
    if not on_cpu:
        return Lack(
            "CPU engines only yet",
            "this version of dsctl starts engines on the CPU only",
            f"{plan}; the command shown there can be run by hand",
        )
    return None
