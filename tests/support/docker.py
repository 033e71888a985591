"""A real Docker engine for tests: the one that answers, or a daemon of our own.

A daemon of our own has its data, state and socket below one directory and is ended, and that
directory removed, when the tests are over. Tests skip only where neither is possible: not root, or
`dockerd` or `debootstrap` not installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: What test images are built on: Debian made by debootstrap, never pulled.
BASE = "dsctl-test/base:bookworm"
_INCLUDE = "python3,libgomp1,ca-certificates"
_MIRROR = "http://deb.debian.org/debian"
_PATIENCE_S = 90.0


class NoDockerError(Exception):
    """There is no Docker engine and none can be started; says why."""


@dataclass(frozen=True)
class DockerEngine:
    """An engine that answers at `host` (a `unix://` address)."""

    host: str
    process: subprocess.Popen[bytes] | None = None  # of a daemon of our own

    @property
    def env(self) -> dict[str, str]:
        """The environment in which `docker`, `docker-compose` and dsctl find it."""
        return os.environ | {"DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "1"}

    def docker(
        self, *arguments: str, check: bool = True, timeout_s: float = 300, text: str | None = None
    ) -> str:
        """Run `docker ARGUMENTS`; what it printed on stdout, stripped.

        Raises:
            AssertionError: it failed and `check` is set; has what it said.
        """
        done = subprocess.run(
            [docker_program(), *arguments],
            env=self.env,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"docker {arguments}: {done.stderr}"
        return done.stdout.strip()

    def has_image(self, name: str) -> bool:
        """Whether the engine has an image of this name."""
        return bool(self.docker("images", "-q", name))


def docker_program() -> str:
    """A `docker` that can speak BuildKit: Debian's own (20.10 has it built in), else the first."""
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """The engine that answers, or one of our own for as long as the context lasts.

    Raises:
        NoDockerError: neither is possible.
    """
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if shutil.which("docker") and answers(host):
        yield DockerEngine(host)
        return
    missing = [name for name in ("docker", "dockerd") if shutil.which(name) is None]
    if missing:
        raise NoDockerError(f"no Docker engine answers and {' and '.join(missing)} not installed")
    if os.geteuid() != 0:
        raise NoDockerError("no Docker engine answers, and only root can start one")
    with own_daemon() as engine:
        yield engine


def answers(host: str) -> bool:
    """Whether an engine answers there."""
    try:
        done = subprocess.run(
            [docker_program(), "-H", host, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextmanager
def own_daemon(*options: str) -> Iterator[DockerEngine]:
    """A daemon of our own, its files in one directory that is removed in the end.

    Raises:
        NoDockerError: it does not come up; has the end of its log.
    """
    _mount_cgroups()
    home = Path(tempfile.mkdtemp(prefix="dsctl-dockerd-"))
    log = home / "log"
    process = None
    try:
        for more in ((), ("--iptables=false",)):  # where the kernel has no nat table
            process = _start_daemon(home, log, [*options, *more])
            host = f"unix://{home}/docker.sock"
            if _wait(process, host):
                yield DockerEngine(host, process)
                return
            end_daemon(process)
        raise NoDockerError(f"dockerd does not start: {log.read_text(errors='replace')[-600:]}")
    finally:
        if process is not None:
            end_daemon(process)
        _end_shims(home)
        _unmount_below(home)
        shutil.rmtree(home, ignore_errors=True)


def end_daemon(process: subprocess.Popen[bytes]) -> None:
    """End a daemon and the containerd that it started."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def ensure_base(engine: DockerEngine) -> str:
    """The name of a Debian base image made by debootstrap, made now unless there is one.

    The tree is kept as a tar in the user's cache, so that it is made once per machine.

    Raises:
        NoDockerError: debootstrap is missing, or we are not root.
    """
    if engine.has_image(BASE):
        return BASE
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dsctl-test"
    tar = cache / "base-bookworm.tar"
    if not tar.exists():
        if shutil.which("debootstrap") is None:
            raise NoDockerError("debootstrap is not installed")
        if os.geteuid() != 0:
            raise NoDockerError("debootstrap needs root")
        cache.mkdir(parents=True, exist_ok=True)
        _debootstrap(cache, tar)
    engine.docker("import", str(tar), BASE)
    return BASE


def _debootstrap(cache: Path, tar: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="debootstrap-", dir=cache) as scratch:
        tree, half = Path(scratch, "tree"), Path(scratch, "half.tar")
        command = ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", "bookworm"]
        done = subprocess.run(
            [*command, str(tree), _MIRROR], capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"debootstrap: {done.stdout[-600:]}{done.stderr[-600:]}"
        subprocess.run(
            ["tar", "-C", str(tree), "--exclude=./var/cache/apt/archives/*.deb", "-cf", half, "."],
            check=True,
            timeout=300,
        )
        half.replace(tar)


def _start_daemon(home: Path, log: Path, options: list[str]) -> subprocess.Popen[bytes]:
    command = ["dockerd", "-H", f"unix://{home}/docker.sock", "--pidfile", f"{home}/pid"]
    command += ["--data-root", f"{home}/data", "--exec-root", f"{home}/exec", *options]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], host: str) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if answers(host):
            return True
        time.sleep(0.2)
    return False


def _mount_cgroups() -> None:
    """Where nobody mounted any (a bare virtual machine without an init): one per controller."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists() or any(root.glob("*/tasks")):
        return
    names = [line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
    subprocess.run(["mount", "-t", "tmpfs", "cgroup", str(root)], check=False, capture_output=True)
    for name in names:
        (root / name).mkdir(exist_ok=True)
        command = ["mount", "-t", "cgroup", "-o", name, "cgroup", str(root / name)]
        subprocess.run(command, check=False, capture_output=True)


def _end_shims(home: Path) -> None:
    """Containers outlive a daemon that was killed: end those of this one, and what holds them."""
    parents: dict[int, int] = {}
    shims = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if f"{home}/exec/".encode() in (entry / "cmdline").read_bytes():
                shims.add(pid)
    for pid in [*(p for p, parent in parents.items() if parent in shims), *shims]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _unmount_below(home: Path) -> None:
    """What a daemon left mounted (network namespaces, overlays), deepest first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(f"{home}/")), reverse=True):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
