"""Where dsctl keeps things: the XDG directories, and what a checkout or wheel ships."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from dsctl.errors import ConfigError

#: Where a process engine looks for programs once it has looked in its own environment.
PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True)
class Paths:
    """Directories of one user. `data`: environments and packs; `state`: deployments and logs."""

    data: Path
    state: Path
    cache: Path
    config: Path

    @property
    def environments(self) -> Path:
        """Engine environments, one directory per lock digest."""
        return self.data / "environments"

    @property
    def runtimes(self) -> Path:
        """Installed copies of our runtime, one directory per content digest."""
        return self.data / "runtimes"

    @property
    def deployment(self) -> Path:
        """The running deployment: state file, lock, logs."""
        return self.state / "deployment"

    @property
    def background(self) -> Path:
        """Who works in the background, and who wishes it to pause."""
        return self.state / "background"

    @property
    def api_keys(self) -> Path:
        """The keys of the API (mode 0600)."""
        return self.config / "api-keys"

    @property
    def gateway_keys(self) -> Path:
        """Digests of the keys, mounted into the gateway."""
        return self.state / "gateway" / "keys"

    @property
    def gateway_tls(self) -> Path:
        """The certificate and its key, mounted into the gateway."""
        return self.state / "gateway" / "tls"

    @property
    def engine_caches(self) -> Path:
        """Caches that the engine may write (compilers, kernels, hub)."""
        return self.cache / "engine"


def user_paths() -> Paths:
    """The XDG directories of the current user (`XDG_*_HOME` respected)."""
    from platformdirs import PlatformDirs

    dirs = PlatformDirs("dsctl", appauthor=False)
    return Paths(
        data=dirs.user_data_path,
        state=dirs.user_state_path,
        cache=dirs.user_cache_path,
        config=dirs.user_config_path,
    )


def make_writable(directory: Path, what: str) -> Path:
    """Create `directory` if need be and prove that it can be written.

    Raises:
        ConfigError: names the directory and what it is for.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):  # nameless: two may prove it at once
            pass
    except OSError as error:
        raise ConfigError(
            f"the {what} directory {directory} cannot be written: {error.strerror or error}",
            remedy=f"make it writable for you (`ls -ld {directory}`), or point XDG_DATA_HOME, "
            "XDG_STATE_HOME or XDG_CACHE_HOME to a directory that is",
        ) from None
    return directory


def shipped(*parts: str) -> Path:
    """A file or directory that ships with dsctl, e.g. `shipped("profiles")`.

    In a checkout these lie at the root of the repository; in an installed wheel, under
    `dsctl/_shipped`.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "_shipped", package.parent.parent):
        candidate = root.joinpath(*parts)
        if candidate.exists():
            return candidate
    raise ConfigError(
        f"{'/'.join(parts)} is missing from this installation of dsctl",
        remedy="install dsctl again, or run it from a complete checkout",
    )
