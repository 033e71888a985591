"""What a start rests on, kept beside its record: profile, plan and facts as they were then.

Whoever adopts a running engine later (and whoever reads a bundle) has these from disk: the files
they came from may have changed since.
"""

from __future__ import annotations

import json

from dsctl.engine.state import StateDirectory
from dsctl.errors import DsctlError
from dsctl.files import write_atomically
from dsctl.model.base import Value
from dsctl.model.facts import Facts
from dsctl.model.plan import Plan
from dsctl.model.profile import Profile
from dsctl.supervise.prepare import Prepared


class Situation(Value):
    """Profile (resolved), plan (None: the checkpoint could not be read) and facts of a start."""

    profile: Profile
    plan: Plan | None
    facts: Facts


def situation_of(prepared: Prepared) -> Situation:
    """The part of what was prepared that outlives the start."""
    return Situation(profile=prepared.profile, plan=prepared.plan, facts=prepared.facts)


def write_situation(state: StateDirectory, situation: Situation) -> None:
    """Keep it."""
    text = situation.model_dump_json(by_alias=True)
    write_atomically(state.situation_file, text + "\n", mode=0o600)


def read_situation(state: StateDirectory) -> Situation | None:
    """What was kept, or None where that is missing, damaged or of another version."""
    try:
        return Situation.model_validate(json.loads(state.situation_file.read_text()))
    except (OSError, ValueError, DsctlError):
        return None
