"""Where a profile's checkpoint lies, if it is there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dsctl.errors import ConfigError
from dsctl.model.profile import Profile
from dsctl.paths import shipped


def checkpoint_directory(profile: Profile) -> Path | None:
    """The directory of the profile's checkpoint, or None while there is none.

    A relative one is looked for here, then among the files that ship with dsctl.
    """
    named = Path(profile.model.checkpoint).expanduser()
    candidates = [named]
    if not named.is_absolute():
        with suppress(ConfigError):
            candidates.append(shipped(*named.parts))
    return next((path for path in candidates if (path / "config.json").is_file()), None)
