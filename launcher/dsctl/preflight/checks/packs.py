"""Packs: is there one, is it of this checkpoint, and what does a build cost if not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check
from dsctl.preflight.sources import checkpoint_here, checkpoint_path, on_host, pack_path

#: The sidecar that alone makes a directory a pack, and its version (runtime/dsruntime/pack).
_SIDECAR = "pack.json"
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
    """The directory with the sidecar: the named one, or the newest pack below it."""
    directory = on_host(context, pack_path(context))
    if not (directory / _SIDECAR).is_file() and directory.is_dir():
        below = sorted(directory.glob(f"*/{_SIDECAR}"), key=lambda p: p.stat().st_mtime)
        return below[-1].parent if below else directory
    return directory


def pack_state(context: CheckContext) -> PackState:
    """Reads the sidecar and the sizes of the files it names."""
    try:
        directory = pack_directory(context)
    except SkipError as skipped:
        return PackState(None, str(skipped))
    try:
        manifest = json.loads((directory / _SIDECAR).read_text())
        files = [(str(f["name"]), int(f["size_bytes"])) for f in manifest["files"]]
        version = manifest["format_version"]
    except FileNotFoundError:
        return PackState(None, f"{pack_path(context)} holds no pack")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return PackState(None, f"its {_SIDECAR} is damaged ({error})")
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
    if context.value("experts", "native") == "native":
        raise SkipError("the profile uses the checkpoint's own experts, no pack")


@check("pack.present", device="cuda")
def present(context: CheckContext) -> Outcome:
    """Whether this start has to quantize first, why, how long, and how much disk it takes."""
    _wanted(context)
    on_host(context, pack_path(context))
    state = pack_state(context)
    if state.usable:
        return good(f"the pack in {pack_path(context)} is whole")
    return warn(
        f"this start quantizes the experts first: {state.reason}",
        f"build it ahead: {_build(context)}",
        f"{_BUILD_MINUTES} minutes and {gib(pack_bytes(context))} of disk, once",
    )


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
    found = {p.name: p.stat().st_size for p in directory.glob("*.safetensors")}
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
