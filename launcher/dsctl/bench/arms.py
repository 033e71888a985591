"""The two arms of a comparison: endpoints that are there, or profiles brought up in turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dsctl.errors import ConfigError, EngineError
from dsctl.measure.subject import Subject, find_subject


@dataclass(frozen=True)
class Arm:
    """`endpoint` is set for a running server; else `profile` with `overrides` is brought up."""

    name: str
    endpoint: str | None = None
    profile: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """It is there already and stays."""
        return self.endpoint is not None


def parse_arm(text: str, name: str) -> Arm:
    """An address (`http://…`, `unix:/…`, `HOST:PORT`) or `PROFILE[,KEY=VALUE]…`.

    Raises:
        ConfigError: neither.
    """
    if text.startswith(("http://", "https://", "unix:")) or (
        ":" in text and "," not in text and "=" not in text
    ):
        return Arm(name, endpoint=text)
    profile, *overrides = text.split(",")
    if not profile or any("=" not in override for override in overrides):
        raise ConfigError(
            f"arm {name} {text!r} is neither an address nor PROFILE,KEY=VALUE",
            remedy="e.g. `dsctl bench ab http://127.0.0.1:8000/v1 http://127.0.0.1:8001/v1`, or "
            "`dsctl bench ab dual96-dspark,draft_tokens=0 dual96-dspark`",
        )
    return Arm(name, profile=profile, overrides=tuple(overrides))


def spec_preset(profile: str) -> tuple[Arm, Arm]:
    """The preset `spec`: a profile without its draft (A) against the profile as it is (B)."""
    return Arm("A", profile=profile, overrides=("draft_tokens=0",)), Arm("B", profile=profile)


@contextmanager
def served(arm: Arm, model: str | None, key_env: str | None) -> Iterator[Subject]:
    """The arm's subject; a profile is up inside and down after.

    Raises:
        EngineError: it does not come up.
    """
    if arm.endpoint is not None:
        yield find_subject(arm.endpoint, model, api_key_env=key_env)
        return
    assert arm.profile is not None
    sets = [part for override in arm.overrides for part in ("--set", override)]
    _dsctl("up", "--profile", arm.profile, *sets, "--detach")
    try:
        yield find_subject(None, model, api_key_env=key_env)
    finally:
        _dsctl("down")


def _dsctl(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dsctl", *arguments], check=False)
    if done.returncode:
        raise EngineError(
            f"`dsctl {' '.join(arguments)}` failed with exit code {done.returncode}",
            remedy="its own message is above",
        )
