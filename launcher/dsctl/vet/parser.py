"""Asks the image's own command line whether it knows a profile's flags. Pure.

The profile's flags are given together with one that nobody knows. A parser that is reached names
that one, and beside it every other that it does not know; nothing of the engine starts. Silence
about it means that the parser was never reached, and proves nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from dsctl.compose import policy
from dsctl.engine.base import EngineCommand
from dsctl.engine.command import engine_command
from dsctl.model.endpoint import Endpoint
from dsctl.model.profile import Profile
from dsctl.vet.observe import CHECKPOINT
from dsctl.vet.values import FlagProof, Parsed, Run

#: The flag that nobody knows.
UNKNOWN = "--dsctl-flag-that-nobody-knows"
#: In containers the engine listens on a socket, where the gateway finds it; in the trap, anywhere.
_SOCKET = Endpoint(uds="/tmp/dsctl-vet.sock")
_UNRECOGNIZED = re.compile(r"unrecognized arguments?: (.*)|[Nn]o such option:? '?(--[\w.-]+)")
_ARGUMENT = re.compile(r"error: argument ([\w/. -]+?): (.*)")


def program_of(profile: Profile | None) -> tuple[str, ...]:
    """What serves in the image: the profile's program, else `vllm serve`."""
    return (profile.engine.program if profile is not None else ()) or ("vllm", "serve")


def serve_argv(profile: Profile) -> tuple[str, ...]:
    """The profile's whole command, with the stand-in for the model."""
    return _command(profile).argv


def serve_env(profile: Profile) -> dict[str, str | None]:
    """The variables that `up` sets for the profile; None for those that it takes away."""
    surroundings = policy.FOREIGN_ENV if profile.engine.external else {}
    return {**surroundings, **_command(profile).env, **dict.fromkeys(profile.engine.unset_env)}


def start_argv(profile: Profile) -> tuple[str, ...]:
    """The whole command as `up` starts it: somebody else's image through the shell."""
    shell = policy.FOREIGN_SHELL if profile.engine.external else ()
    return (*shell, *serve_argv(profile))


def _command(profile: Profile) -> EngineCommand:
    return engine_command(profile, endpoint=_SOCKET, checkpoint=Path(CHECKPOINT))


def surroundings_digest(profile: Profile) -> str:
    """sha256 of what a profile runs an image's engine with, besides flags: program, environment,
    and what lies around it."""
    content = [program_of(profile), sorted(serve_env(profile).items())]
    if profile.engine.external:
        content += [policy.FOREIGN_SHELL, policy.FOREIGN_CACHE.options]
    return "sha256:" + hashlib.sha256(json.dumps(content).encode()).hexdigest()


def flags_in(argv: Sequence[str]) -> tuple[str, ...]:
    """The names of the flags of a command, each once, without the one that nobody knows."""
    named = {word.partition("=")[0] for word in argv if word.startswith("--")}
    return tuple(sorted(named - {UNKNOWN}))


def flag_proof(run: Run) -> FlagProof:
    """What the parser said to `argv` with UNKNOWN in it."""
    flags = flags_in(run.argv)
    text = "\n".join(run.last_lines)
    argument = _ARGUMENT.search(text)
    if argument:
        named = re.findall(r"--[\w.-]+", argument[1])
        return FlagProof(
            outcome=Parsed.REFUSED,
            flags=flags,
            refused=tuple(n for n in named if n in flags) or tuple(named[:1]),
            why=_line(text, argument.start()),
        )
    unknown = _UNRECOGNIZED.search(text)
    if unknown is None:
        ending = "still running" if run.exit_code is None else f"exit code {run.exit_code}"
        last = run.last_lines[-1] if run.last_lines else "it said nothing"
        return FlagProof(
            outcome=Parsed.UNPROVEN, flags=flags, why=f"no answer of a parser ({ending}): {last}"
        )
    words = (unknown[1] or unknown[2]).split()
    refused = tuple(sorted({w.partition("=")[0] for w in words if w.startswith("--")} - {UNKNOWN}))
    if not refused and UNKNOWN in words:
        return FlagProof(outcome=Parsed.ACCEPTED, flags=flags)
    why = _line(text, unknown.start()).replace(f" {UNKNOWN}", "")
    return FlagProof(outcome=Parsed.REFUSED, flags=flags, refused=refused, why=why)


def _line(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[start : end if end >= 0 else None][:400]
