"""Which probes a start must pass before it is called ready, taken from its profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.errors import ConfigError
from dsctl.supervise.questions import Question, read_questions

if TYPE_CHECKING:
    from dsctl.model.profile import Profile

#: vLLM's default of `max_num_batched_tokens` for a server (0.32, engine/arg_utils.py).
_DEFAULT_BUDGET = 8192


@dataclass(frozen=True)
class Probes:
    """The probes, in the order in which they are made; None or 0: not made.

    `prefill_tokens`: the engine's token budget of one step, filled once.
    """

    known: Question | None = None
    thinking: Question | None = None
    tool: Question | None = None
    prefill_tokens: int = 0
    free: Question | None = None


def probes_of(profile: Profile) -> Probes:
    """The first question of each kind that the served model's parsers make possible.

    `limits.probe_prefill_tokens` replaces the size of the full prefill; 0 leaves it out.

    Raises:
        ConfigError: the questions or that limit are bad.
    """
    from dsctl.supervise.selection import shipped_or

    named = profile.model.questions
    questions = read_questions(shipped_or(Path(named))) if named is not None else ()

    def first(kind: str) -> Question | None:
        return next((q for q in questions if q.kind == kind), None)

    return Probes(
        known=first("plain"),
        thinking=first("thinking") if profile.value("reasoning_parser") else None,
        tool=first("tool") if profile.value("enable_auto_tool_choice") else None,
        prefill_tokens=_prefill_tokens(profile),
        free=first("free"),
    )


def _prefill_tokens(profile: Profile) -> int:
    limit = profile.limits.get("probe_prefill_tokens")
    if limit is None:
        return int(profile.value("max_num_batched_tokens", _DEFAULT_BUDGET))
    if not isinstance(limit.value, int) or isinstance(limit.value, bool) or limit.value < 0:
        raise ConfigError(
            f"profile {profile.id}, limit 'probe_prefill_tokens': {limit.value!r} is no number of "
            "tokens",
            remedy="give a whole number; 0 leaves the probe out",
        )
    return limit.value
