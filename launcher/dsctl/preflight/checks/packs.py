"""Packs: is there one, is it of this checkpoint, and what does a build cost if not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsctl.planning.packs import (
    SIDECAR,
    cannot_do_without,
    find_pack,
    shards_of,
    wants_pack,
)
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check
from dsctl.preflight.sources import (
    checkpoint_directory,
    checkpoint_here,
    checkpoint_path,
    on_host,
    pack_path,
)

#: Version of the sidecar (runtime/dsruntime/pack).
_FORMAT_VERSION = 1
#: 2-bit planes and split FP4 corrections of 43 layers × 256 experts (6.75 and 7.5 MiB an expert).
_BASE_BYTES = 43 * 256 * 27 * (1 << 18)
_CORRECTION_BYTES = 43 * 256 * 15 * (1 << 19)
#: Reading 150 GB, converting and writing, as reported for a first start without packs.
_BUILD_MINUTES = "10 to 20"


@dataclass(frozen=True)
class PackState:
    """What was found where the pack should be; `reason` where it is not usable."""

    manifest: dict[str, Any] | None
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether a start could use it as it is."""
        return self.manifest is not None and not self.reason


def pack_bytes(context: CheckContext) -> int:
    """Size of the profile's pack on disk, from the plan where there is one."""
    components = context.plan.disk.components if context.plan is not None else {}
    planned = sum(size for name, size in components.items() if "pack" in name)
    return planned or _BASE_BYTES + _CORRECTION_BYTES


def pack_directory(context: CheckContext) -> Path:
    """The directory with the sidecar, as a start would choose it."""
    directory = on_host(context, pack_path(context))
    try:
        checkpoint = checkpoint_directory(context)
    except SkipError:
        checkpoint = directory  # recorded without its checkpoint: nothing fits, the newest is told
    return find_pack(directory, checkpoint, max(1, context.ranks)) or directory


def pack_state(context: CheckContext) -> PackState:
    """Reads the sidecar and the sizes of the files it names."""
    try:
        directory = pack_directory(context)
    except SkipError as skipped:
        return PackState(None, str(skipped))
    try:
        manifest = json.loads((directory / SIDECAR).read_text())
        files = [(str(f["name"]), int(f["size_bytes"])) for f in manifest["files"]]
        version = manifest["format_version"]
    except FileNotFoundError:
        return PackState(None, f"{pack_path(context)} holds no pack")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return PackState(None, f"its {SIDECAR} is damaged ({error})")
    if version != _FORMAT_VERSION:
        return PackState(manifest, f"it has format {version}, this runtime reads {_FORMAT_VERSION}")
    for name, size in files:
        file = directory / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found:,} bytes"
            return PackState(manifest, f"{name} {what}, expected {size:,}")
    return PackState(manifest)


def _build(context: CheckContext) -> str:
    """The command that makes the pack this profile wants."""
    return (
        f"`dsctl pack build --checkpoint {checkpoint_path(context)} --out {pack_path(context)} "
        f"--tp {max(1, context.ranks)}`"
    )


def _wanted(context: CheckContext) -> None:
    """Raises SkipError unless the profile uses a pack."""
    if not wants_pack(context.profile):
        raise SkipError("the profile uses the checkpoint's own experts, no pack")


@check("pack.present", device="cuda")
def present(context: CheckContext) -> Outcome:
    """Whether there is one; without, a start quantizes again each time, or cannot be."""
    _wanted(context)
    on_host(context, pack_path(context))
    state = pack_state(context)
    if state.usable:
        return good(f"the pack in {pack_directory(context)} is whole")
    build = f"build it, once: {_build(context)}; a start finds it there"
    takes = f"{_BUILD_MINUTES} minutes and {gib(pack_bytes(context))} of disk"
    if cannot_do_without(context.profile, context.engine):
        return fail(f"this start needs a pack: {state.reason}", build, takes)
    return warn(f"every start quantizes the experts anew: {state.reason}", build, takes)


@check("pack.identity", device="cuda")
def identity(context: CheckContext) -> Outcome:
    """Whether the pack was made from this checkpoint, for as many ranks: what changed if not.

    The cheap half: shards by name, size and (as the sidecar remembers them) inode and time. The
    runtime compares contents when it opens the pack.
    """
    _wanted(context)
    state = pack_state(context)
    if not state.usable or state.manifest is None:
        raise SkipError("there is no usable pack (see pack.present)")
    again = _build(context)
    ranks, made_for = max(1, context.ranks), state.manifest.get("tensor_parallel")
    if made_for != ranks:
        return fail(f"the pack is for {made_for} card(s), this profile uses {ranks}", again)
    recorded = {s["name"]: int(s["size_bytes"]) for s in state.manifest["source"]["shards"]}
    directory = checkpoint_here(context)
    found = shards_of(directory)
    changed = sorted(n for n in recorded if found.get(n) != recorded[n])
    if changed:
        first = changed[0]
        now = "missing" if first not in found else f"{found[first]:,} bytes"
        return fail(
            f"the pack was made from another checkpoint than {checkpoint_path(context)}: "
            f"{first} was {recorded[first]:,} bytes and is {now}",
            again,
            f"{len(changed)} of {len(recorded)} shards differ",
        )
    return good(f"made from this checkpoint ({len(recorded)} shards), for {ranks} card(s)")
