"""Places as variables: the Compose file that fits every machine, as it lies in `compose/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsctl.compose.deck import Places, deck_of, needs_pack
from dsctl.compose.spec import Deck
from dsctl.image.names import REPOSITORIES

if TYPE_CHECKING:
    from dsctl.model.profile import Profile

_DEFAULT_PORT = 8000


def portable_deck(profile: Profile) -> Deck:
    """The deck of a profile with variables where machines differ."""
    port = int(profile.value("port", _DEFAULT_PORT))
    places = Places(
        engine_image=f"${{ENGINE_IMAGE:-{engine_image(profile)}}}",
        gateway_image=f"${{GATEWAY_IMAGE:-{REPOSITORIES['gateway']}:latest}}",
        model=_model(profile),
        pack=_asked("PACK_DIR", "the directory of the packs") if needs_pack(profile) else None,
        keys="${KEYS_DIR:-./keys}",
        hardening="${HARDENING_DIR:-../hardening}",
        bind="${BIND:-127.0.0.1}",
        port=f"${{PORT:-{port}}}",
        monitor_port=f"${{MONITOR_PORT:-{port + 1}}}",
        gpus=tuple(
            _asked(f"GPU_{n}", "the UUID of a card; nvidia-smi -L lists them")
            for n in range(profile.hardware.gpus)
        ),
    )
    return deck_of(profile, places)


def engine_image(profile: Profile) -> str:
    """The image a profile's engine runs in, by its moving name: the exact one, which changes with
    every change of the runtime, is what `up` and `dsctl compose --resolve` take."""
    if profile.engine.external:
        return profile.engine.image or ""
    return f"{REPOSITORIES[profile.engine.environment]}:latest"


def _model(profile: Profile) -> str:
    """A checkpoint that ships lies beside the Compose files; any other is asked for."""
    from pathlib import Path

    from dsctl.errors import ConfigError
    from dsctl.paths import shipped

    named = Path(profile.model.checkpoint)
    try:
        shipped(*named.parts)
    except ConfigError:
        return _asked("MODEL_DIR", "the directory of the checkpoint")
    return f"${{MODEL_DIR:-../{named}}}"


def _asked(name: str, what: str) -> str:
    return f"${{{name}:?set {name} to {what}}}"
