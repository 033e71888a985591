"""Which pack a start uses: the one that is named, or the one where packs are kept."""

from __future__ import annotations

import json
from pathlib import Path

from dsctl.model.profile import Knob, Profile, Source
from dsctl.paths import Paths

#: The sidecar that alone makes a directory a pack (runtime/dsruntime/pack).
SIDECAR = "pack.json"


def wants_pack(profile: Profile) -> bool:
    """Whether its engine reads prepared experts where there are any."""
    return bool(profile.value("experts", "native") != "native")


def cannot_do_without(profile: Profile, engine: str) -> bool:
    """Whether nothing starts without one: containers have the model read-only and no more, and
    what is read in place or on demand must be on disk."""
    on_demand = profile.value("experts") == "w2-cache" or bool(profile.value("mapped_layers"))
    return wants_pack(profile) and (engine == "docker" or on_demand)


def packs_of(paths: Paths) -> Path:
    """Where packs are kept unless a profile names another place."""
    return paths.data / "packs"


def find_pack(place: Path, checkpoint: Path, ranks: int) -> Path | None:
    """The pack at `place`; else the newest below it, one that fits before others."""
    if (place / SIDECAR).is_file():
        return place
    below = sorted(
        (path.parent for path in place.glob(f"*/{SIDECAR}")),
        key=lambda pack: (fits(pack, checkpoint, ranks), (pack / SIDECAR).stat().st_mtime),
    )
    return below[-1] if below else None


def fits(pack: Path, checkpoint: Path, ranks: int) -> bool:
    """Whether it is for so many ranks and of shards with these names and sizes.

    The engine compares contents when it opens the pack.
    """
    try:
        manifest = json.loads((pack / SIDECAR).read_text())
        shards = {str(s["name"]): int(s["size_bytes"]) for s in manifest["source"]["shards"]}
        return bool(manifest["tensor_parallel"] == ranks and shards == shards_of(checkpoint))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def shards_of(checkpoint: Path) -> dict[str, int]:
    """Sizes of a checkpoint's shards by name."""
    return {path.name: path.stat().st_size for path in checkpoint.glob("*.safetensors")}


def with_pack(profile: Profile, checkpoint: Path, paths: Paths) -> Profile:
    """The profile with the pack that was found named outright: engines look nowhere else.

    One that nobody named is taken only if it fits.
    """
    if not wants_pack(profile):
        return profile
    named, ranks = profile.value("pack_dir"), profile.value("tensor_parallel_size", 1)
    place = Path(named).expanduser() if named else packs_of(paths)
    found = find_pack(place, checkpoint, ranks)
    if found is None or str(found) == named or not (named or fits(found, checkpoint, ranks)):
        return profile
    knob = Knob(value=str(found), source=Source.DERIVED, why="the pack that is there")
    return profile.model_copy(update={"knobs": {**profile.knobs, "pack_dir": knob}})
