"""Where the checkpoint and the packs of a profile lie on the host that is checked."""

from __future__ import annotations

from pathlib import Path

from dsctl.planning.packs import packs_of
from dsctl.preflight.outcome import SkipError
from dsctl.preflight.registry import CheckContext


def _absolute(context: CheckContext, path: str) -> str:
    found = Path(path).expanduser() if context.live else Path(path.replace("~", "/home/user", 1))
    if found.is_absolute():
        return str(found)
    if not found.is_dir():
        from dsctl.errors import ConfigError
        from dsctl.paths import shipped

        try:
            return str(shipped(*found.parts))
        except ConfigError:
            return str(found.absolute())
    return str(found.absolute())


def checkpoint_path(context: CheckContext) -> str:
    """Absolute path of the checkpoint on the host; a relative one may be one that ships."""
    return _absolute(context, context.profile.model.checkpoint)


def pack_path(context: CheckContext) -> str:
    """Absolute path of the pack on the host."""
    named = context.value("pack_dir")
    if named:
        return _absolute(context, str(named))
    if context.paths is not None:
        return str(packs_of(context.paths))
    return "/home/user/.local/share/dsctl/packs"


def on_host(context: CheckContext, path: str) -> Path:
    """The path to open for a path of the host.

    Raises:
        SkipError: those files are not here: only facts are, or a recorded tree without them.
    """
    if context.files is None:
        raise SkipError("only the facts of that machine are here, not its files")
    if context.files == Path("/"):
        return Path(path)
    found = context.files / path.lstrip("/")
    if not found.exists():
        raise SkipError(f"{path} was not recorded")
    return found


def checkpoint_directory(context: CheckContext) -> Path:
    """Where to open the checkpoint. One that ships with dsctl is here whatever host is checked.

    Raises:
        SkipError: as `on_host`.
    """
    path = checkpoint_path(context)
    if not context.profile.model.checkpoint.startswith(("/", "~")):
        return Path(path)
    return on_host(context, path)


def checkpoint_here(context: CheckContext) -> Path:
    """The checkpoint's directory, to be opened.

    Raises:
        SkipError: there is none (model.checkpoint says so).
    """
    directory = checkpoint_directory(context)
    if not (directory / "config.json").is_file():
        raise SkipError("there is no checkpoint (see model.checkpoint)")
    return directory
