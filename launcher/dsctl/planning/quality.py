"""How good the answers of a profile can be expected to be: what `--profile auto` ranks by first."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from dsctl.model.profile import Profile

#: Two users, independently: tool calls and structured output broke with 2 GiB, not with this.
GOOD_POOL_GIB = 6.0


class Grade(IntEnum):
    """Larger is better."""

    TOY = 0
    DEGRADED = 1
    THIN = 2
    CORRECTED = 3
    NATIVE = 4


class Quality(NamedTuple):
    """The grade and the words for it."""

    grade: Grade
    text: str


def quality_of(profile: Profile) -> Quality:
    """Expected quality, from the knobs that decide it."""
    if profile.model.geometry == "canary":
        return Quality(Grade.TOY, "a miniature that knows a few answers, not the model")
    if profile.value("experts", "native") == "native":
        return Quality(Grade.NATIVE, "the checkpoint's own FP4 experts")
    if profile.value("replay", "strict") == "approximate":
        return Quality(Grade.DEGRADED, "2-bit base with missing experts left out: degraded")
    pool = profile.value("pool_gib", 0)
    if pool == "auto":
        return Quality(
            Grade.CORRECTED,
            f"2-bit base with FP4 corrections in all that is left; below {GOOD_POOL_GIB:g} GiB "
            "tool calls and structured output suffer",
        )
    if pool < GOOD_POOL_GIB:
        return Quality(
            Grade.THIN,
            f"2-bit base, {pool:g} GiB of FP4 corrections: with 2 GiB tool calls and structured "
            f"output broke, with {GOOD_POOL_GIB:g} they did not",
        )
    return Quality(Grade.CORRECTED, f"2-bit base with {pool:g} GiB of FP4 corrections")
