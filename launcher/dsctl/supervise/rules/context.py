"""What rules know besides the samples: the plan, the past, the bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from dsctl.errors import ConfigError
from dsctl.model.event import Phase
from dsctl.model.plan import Plan
from dsctl.model.profile import Profile

#: The phases of a start, from the engine's first process to the first right answer.
STARTING = (
    Phase.STARTING,
    Phase.LOADING,
    Phase.ALLOCATING,
    Phase.COMPILING,
    Phase.WARMING,
)


@dataclass(frozen=True)
class Limits:
    """Bounds of the rules, each with its reason. A profile's `limits` may replace them by name."""

    #: A collective that spins shows in seconds; a minute keeps a long kernel from looking like one.
    spin_s: float = 60.0
    #: Nothing at all moves for this long: stuck. Longer than any pause of a healthy start.
    stuck_s: float = 120.0
    #: Requests run and no iteration for this long: stalled. A first burst that compiles kernels in
    #: the middle takes 20 to 60 s.
    stall_grace_s: float = 120.0
    #: Busy at this utilization, in percent, ...
    spin_utilization: float = 95.0
    #: ... below this share of the power limit, or below so many watts: waiting, not computing.
    #: Spinning cards were seen at 85 to 98 W; work draws 65 to 70 % of the limit.
    spin_power_share: float = 0.25
    spin_power_w: float = 100.0
    #: Share of time, in percent, in which all tasks waited for memory, kept up for `thrash_s`.
    thrash_stall: float = 20.0
    thrash_s: float = 15.0
    #: Swap or cache that comes back from disk, bytes per second, to call it thrashing.
    thrash_bytes_s: float = 4e6
    #: Left to the machine: a share of its memory, at least so many bytes.
    reserve_share: float = 0.02
    reserve_bytes: int = 512 << 20
    #: Draft acceptance below this share of its own baseline is a collapse.
    acceptance_share: float = 0.5
    acceptance_least_drafts: float = 300.0
    #: Restarts of a running engine within `restart_window_s`; first wait, doubled up to the last.
    restarts: int = 4
    restart_window_s: float = 3600.0
    backoff_s: float = 5.0
    backoff_most_s: float = 300.0


@dataclass(frozen=True)
class Context:
    """One start or running engine. `phase_began`: `t` of the present phase.

    `expected_s`: seconds by phase, from this machine's history where there is one (`history`) else
    from the plan. `dropped`: files whose page cache has been given back already. `background`:
    whether work of ours runs beside the engine. `acceptance`: baseline of draft acceptance.
    """

    phase_began: float
    plan: Plan | None = None
    limits: Limits = field(default_factory=Limits)
    expected_s: dict[str, float] = field(default_factory=dict)
    expected_from: str = ""
    dropped: frozenset[str] = frozenset()
    background: bool = False
    acceptance: float | None = None
    peer_to_peer: bool | None = None


def limits_of(profile: Profile) -> Limits:
    """The bounds, with those that the profile's `limits` replace by name.

    Raises:
        ConfigError: one of them is no number.
    """
    names = {f.name for f in fields(Limits)}
    given = {k: knob.value for k, knob in profile.limits.items() if k in names}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(
                f"profile {profile.id}, limit {name!r}: {value!r} is no number of 0 or more",
                remedy="give a number, or leave it out",
            )
    return Limits(**given)
