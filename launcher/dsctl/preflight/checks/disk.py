"""Disks: room for the model, the engine and the packs, and filesystems that can hold packs."""

from __future__ import annotations

from dsctl.model.facts import Disk
from dsctl.planning.packs import cannot_do_without, wants_pack
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check
from dsctl.preflight.sources import checkpoint_directory, checkpoint_path, pack_path

#: DeepSeek-V4-Flash-0731 as published: 156 GB.
_CHECKPOINT_BYTES = 156 * 10**9
_CACHES_BYTES = 2 << 30
#: Where a pack must not lie, and why.
_REFUSED = {
    "overlay": "a container's own layer: it is lost with it, and slow",
    "tmpfs": "memory, not a disk",
    "9p": "a Windows disk seen from WSL, at a tenth of its speed",
    "drvfs": "a Windows disk seen from WSL, at a tenth of its speed",
    "vfat": "it holds no file above 4 GiB",
}
_DOUBTFUL = {
    "btrfs": "copy-on-write; a host lock-up was reported there and not on ext4",
    "zfs": "its cache takes memory that the engine needs",
    "ntfs": "driven in user space",
    "fuseblk": "driven in user space",
    "nfs": "every cold start reads all of it over the network",
    "nfs4": "every cold start reads all of it over the network",
    "cifs": "every cold start reads all of it over the network",
}


def _disk(context: CheckContext, path: str) -> Disk:
    disk = context.facts.disk_of(path)
    if disk is None:
        raise SkipError(f"no mounted filesystem is known above {path}")
    if disk.total_bytes == 0:
        raise SkipError(f"{disk.path} ({disk.fstype}) was not asked for its size")
    return disk


def _data_directory(context: CheckContext) -> str:
    return str(context.paths.data) if context.paths is not None else "/"


def _environment_bytes(context: CheckContext) -> int:
    """What making the engine's environment still takes."""
    from dsctl.engine.environment import environment_for
    from dsctl.engine.lockfile import read_lock
    from dsctl.errors import ConfigError

    try:
        lock = read_lock(context.profile.engine.environment)
    except ConfigError:
        return 0
    if context.live and context.paths and environment_for(lock, context.paths).is_ready():
        return 0
    return lock.installed_bytes + lock.download_bytes


@check("disk.model-space", needs=("disks",))
def model_space(context: CheckContext) -> Outcome:
    """Room for what is still to be fetched: the checkpoint, the engine, its caches."""
    model = checkpoint_path(context)
    there = _is_there(context)
    wants: dict[str, tuple[Disk, int]] = {}

    def want(path: str, size: int) -> None:
        disk = _disk(context, path)
        wants[disk.path] = (disk, wants.get(disk.path, (disk, 0))[1] + size)

    if not there and context.profile.hardware.device == "cuda":
        want(model, _CHECKPOINT_BYTES)
    want(_data_directory(context), _environment_bytes(context) + _CACHES_BYTES)
    for disk, size in wants.values():
        if disk.free_bytes < size:
            return fail(
                f"{disk.path} has {gib(disk.free_bytes)} free, {gib(size)} are needed",
                "free some, or name directories on another disk: `--set checkpoint=DIR`, "
                "XDG_DATA_HOME",
                "the checkpoint, the engine's environment and its caches",
            )
    disk, size = min(wants.values(), key=lambda w: w[0].free_bytes - w[1])
    return good(f"{gib(disk.free_bytes)} free on {disk.path}, {gib(size)} still needed")


def _virtual(context: CheckContext) -> bool:
    system = context.facts.system
    return system is not None and system.virtual_machine is not None


def _is_there(context: CheckContext) -> bool:
    try:
        return checkpoint_directory(context).is_dir()
    except SkipError:
        return False


@check("disk.pack-space", needs=("disks",), device="cuda")
def pack_space(context: CheckContext) -> Outcome:
    """Room for the packs, which are written once."""
    from dsctl.preflight.checks.packs import pack_bytes, pack_state

    if not wants_pack(context.profile):
        return good("this profile uses no pack")
    size = pack_bytes(context)
    disk = _disk(context, pack_path(context))
    if pack_state(context).usable:
        return good("the pack is there")
    if disk.free_bytes < size:
        needed = cannot_do_without(context.profile, context.engine)
        return (fail if needed else warn)(
            f"{disk.path} has {gib(disk.free_bytes)} free, the pack takes {gib(size)}",
            "free some, or put it on another disk (`dsctl pack build --out DIR`) and name that: "
            "`--set pack_dir=DIR`",
            "" if needed else "it starts without one, and quantizes anew each time",
        )
    return good(f"{gib(disk.free_bytes)} free on {disk.path}, the pack takes {gib(size)}")


@check("disk.pack-filesystem", needs=("disks",), device="cuda")
def pack_filesystem(context: CheckContext) -> Outcome:
    """A pack is read at random while it serves: it wants a real disk and a plain filesystem."""
    if not wants_pack(context.profile):
        return good("this profile uses no pack")
    disk = _disk(context, pack_path(context))
    where = f"{pack_path(context)} lies on {disk.fstype} ({disk.path})"
    move = "put it on ext4 or xfs on an NVMe disk: `--set pack_dir=DIR`"
    if disk.fstype in _REFUSED:
        return fail(f"{where}: {_REFUSED[disk.fstype]}", move)
    if "ro" in disk.options:
        return fail(f"{where}, which is mounted read-only", move)
    if disk.fstype in _DOUBTFUL:
        return warn(f"{where}: {_DOUBTFUL[disk.fstype]}", move)
    if disk.rotational and not _virtual(context):  # virtual disks say anything
        return warn(
            f"{where}, a spinning disk", move, "a cold start reads 75 GiB: 7 minutes or more"
        )
    return good(where)
