"""Our images, built by `dsctl image build` once for a whole test run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker import DockerEngine

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 1500.0


@dataclass
class Images:
    """Builds what is asked for and remembers it: `ref("gateway")["tag"]`."""

    docker: DockerEngine
    patch: pytest.MonkeyPatch
    own_locks: bool = False
    _built: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ref(self, target: str) -> dict[str, Any]:
        """The image of a target as `dsctl image build --format json` prints it."""
        if target not in self._built:
            done = self.build(target)
            if done.returncode != 0 and "cannot be fetched" in done.stderr and not self.own_locks:
                self._lock_again()
                done = self.build(target)
            assert done.returncode == 0, done.stderr
            self._built[target] = json.loads(done.stdout)
        return self._built[target]

    def fetched(self, target: str) -> dict[str, Any]:
        """The image of a target, and what it is built from is in the wheelhouse as well."""
        image = self.ref(target)
        done = self.build(target, "--fetch-only")
        assert done.returncode == 0, done.stderr
        return image

    def build(self, target: str, *more: str) -> subprocess.CompletedProcess[str]:
        """`dsctl image build --target TARGET …`."""
        return run_dsctl(
            *("image", "build", "--target", target, "--format", "json"),
            *("--wheelhouse", str(self.wheelhouse), *more),
        )

    @property
    def wheelhouse(self) -> Path:
        """Where what is fetched lies, for all targets: shared with the engine's environment."""
        brought = os.environ.get("DSCTL_WHEELHOUSE")
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        return Path(brought) if brought else cache / "dsctl-test" / "wheelhouse"

    def _lock_again(self) -> None:
        """Debian's mirror has newer packages and no longer those of the shipped locks: lock what it
        has, for this run. The tests then prove the same of newer packages."""
        locks = Path(tempfile.mkdtemp(prefix="dsctl-locks-"))
        shipped = ROOT / "launcher" / "dsctl" / "data" / "locks"
        for path in shipped.iterdir():
            (locks / path.name).write_bytes(path.read_bytes())
        command = [sys.executable, str(ROOT / "tools" / "lock_debs.py"), "--to", str(locks)]
        subprocess.run(command, check=True, timeout=120)
        self.patch.setenv("DSCTL_LOCKS", str(locks))
        self.own_locks = True


def run_dsctl(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `dsctl` to its end."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("dsctl")), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
