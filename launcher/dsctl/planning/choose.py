"""What-if: the best profile for a machine, and the largest value of a knob that still fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsctl.errors import ConfigError, DsctlError, NotGoodError
from dsctl.model.plan import Plan, Verdict
from dsctl.model.profile import Profile, Status
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.machine import Machine
from dsctl.planning.plan import make_plan
from dsctl.planning.quality import quality_of
from dsctl.planning.startable import lack_of

Planner = Callable[[Profile], Plan]


@dataclass(frozen=True)
class Candidate:
    """A profile with its plan, and in a line why it was not taken (empty for the winner)."""

    profile: Profile
    plan: Plan
    lost_because: str = ""

    @property
    def eligible(self) -> bool:
        """Whether `auto` may take it."""
        return eligible(self.profile, self.plan)


def choose(
    machine: Machine, overrides: Mapping[str, str] | None = None, names: Iterable[str] | None = None
) -> list[Candidate]:
    """All profiles, the best first: those that fit by quality, then speed; the others after them.

    This is what `auto` means in `dsctl plan`, `dsctl up` and `dsctl preflight`.

    Raises:
        NotGoodError: none fits; says why the closest does not.
    """
    profiles = [load_profile(name, overrides) for name in names or profile_names()]
    ranked = rank_on(machine, profiles)
    if not ranked or not ranked[0].eligible:
        closest = ranked[0].lost_because if ranked else "there are no profiles"
        raise NotGoodError(
            f"no profile fits this machine: {closest}",
            remedy="`dsctl plan --profile P` shows what each would need",
        )
    return ranked


def rank_on(machine: Machine, profiles: Iterable[Profile]) -> list[Candidate]:
    """As `choose`, also where nothing fits: then not even the first is eligible."""
    return rank([(profile, make_plan(profile, machine)) for profile in profiles])


def eligible(profile: Profile, plan: Plan) -> bool:
    """Whether `auto` may take it: it fits, it is ours to run, and it can be started."""
    ours = profile.status in (Status.SUPPORTED, Status.EXPERIMENTAL)
    return plan.fits and ours and lack_of(profile) is None


def rank(plans: list[tuple[Profile, Plan]]) -> list[Candidate]:
    """The order of `choose`."""

    def key(entry: tuple[Profile, Plan]) -> tuple[object, ...]:
        profile, plan = entry
        speed = typical(plan)
        comfort = plan.verdict is Verdict.FITS
        grade = quality_of(profile).grade
        return (eligible(profile, plan), grade, comfort, speed, profile.prefer)

    ordered = sorted(plans, key=key, reverse=True)
    if not ordered:
        return []
    winner = ordered[0]
    return [Candidate(p, plan, _why(p, plan, winner)) for p, plan in ordered]


def typical(plan: Plan) -> float:
    """One number for a range of decode speeds: its geometric mean; 0 where none is known."""
    if plan.speed is None:
        return 0.0
    return math.sqrt(plan.speed.decode.low * plan.speed.decode.high)


def _why(profile: Profile, plan: Plan, winner: tuple[Profile, Plan]) -> str:
    best, best_plan = winner
    if profile.id == best.id and eligible(profile, plan):
        return ""
    if profile.status is Status.UNSUPPORTED:
        return f"unsupported: {profile.status_reason}"
    if not plan.fits:
        return plan.reasons[0] if plan.reasons else "does not fit"
    if profile.status is Status.EXTERNAL:
        return "a third-party image: only by name, and only after `dsctl image vet`"
    lack = lack_of(profile)
    if lack is not None:
        return f"cannot be started: {lack.why}"
    if quality_of(profile).grade < quality_of(best).grade:
        return f"fits, but {quality_of(profile).text}"
    if plan.verdict is Verdict.TIGHT and best_plan.verdict is Verdict.FITS:
        return f"fits only tightly: {plan.reasons[0]}"
    if plan.speed and best_plan.speed and typical(plan) < typical(best_plan):
        mine, theirs = plan.speed.decode, best_plan.speed.decode
        return (
            f"fits, as good, but slower: {mine.low:.0f}-{mine.high:.0f} tok/s against "
            f"{theirs.low:.0f}-{theirs.high:.0f}"
        )
    return f"fits, as good and as fast; `{best.id}` is preferred"


@dataclass(frozen=True)
class Largest:
    """The largest value of a knob that still fits, and what binds beyond it."""

    knob: str
    value: float
    binds: str


#: Knobs that `--max` can stretch: the step, and where to stop looking.
STRETCHABLE: dict[str, tuple[float, float]] = {
    "pool_gib": (0.25, 192.0),
    "max_model_len": (256.0, 1_048_576.0),
    "max_num_seqs": (1.0, 1024.0),
    "max_num_batched_tokens": (256.0, 65_536.0),
    "base_cache_gib": (0.25, 192.0),
}
_SHORT = {"pool": "pool_gib", "context": "max_model_len", "sequences": "max_num_seqs"}


def largest(
    name: str,
    knob: str,
    machine: Machine | None,
    overrides: Mapping[str, str] | None = None,
    checkpoint: Path | None = None,
) -> Largest:
    """The largest value of `knob` with which profile `name` fits.

    Raises:
        ConfigError: the knob cannot be stretched.
        NotGoodError: not even the smallest value fits.
    """
    knob = _SHORT.get(knob, knob)
    if knob not in STRETCHABLE:
        raise ConfigError(
            f"--max {knob}: not a knob that can be stretched",
            remedy=f"one of {', '.join((*_SHORT, *STRETCHABLE))}",
        )
    step, most = STRETCHABLE[knob]

    def plan_at(count: int) -> Plan:
        value = count * step
        text = f"{value:g}" if knob.endswith("_gib") else str(round(value))
        profile = load_profile(name, {**(overrides or {}), knob: text})
        return make_plan(profile, machine, checkpoint=checkpoint)

    limit = round(most / step)
    found = bisect(lambda count: plan_at(count).fits, limit)
    if found == 0:
        raise NotGoodError(
            f"no value of {knob} fits: {_first(plan_at(1))}",
            remedy=f"see `dsctl plan --profile {name}`",
        )
    binds = "nothing up to there" if found == limit else _first(plan_at(found + 1))
    return Largest(knob, found * step, binds)


def bisect(fits: Callable[[int], bool], limit: int) -> int:
    """The largest of 1..limit that fits, 0 if none; fitting must be monotone."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            good = fits(middle)
        except DsctlError:  # beyond a knob's own bound
            good = False
        low, high = (middle, high) if good else (low, middle)
    return low


def _first(plan: Plan) -> str:
    return plan.reasons[0] if plan.reasons else "does not fit"
