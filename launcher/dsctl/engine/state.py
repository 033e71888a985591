"""The deployment on disk: one state file, one lock, one log; what survives the shell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsctl.errors import ConfigError
from dsctl.files import LockBusyError, exclusive, write_atomically
from dsctl.model.deployment import STATE_VERSION, Deployment, ProcessIdentity


@dataclass(frozen=True)
class StateDirectory:
    """Files of the deployment below one directory."""

    directory: Path

    @property
    def state_file(self) -> Path:
        """The record (JSON), written atomically."""
        return self.directory / "deployment.json"

    @property
    def lock_file(self) -> Path:
        """Held by whoever changes the deployment; holds that process' identity."""
        return self.directory / "lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor for as long as it lives; holds its identity."""
        return self.directory / "supervisor.lock"

    @property
    def supervisor_started(self) -> Path:
        """The supervisor that was started last, until it has taken its lock."""
        return self.directory / "supervisor.json"

    @property
    def supervisor_log(self) -> Path:
        """What a background supervisor had to say beside its events: normally nothing."""
        return self.directory / "supervisor.log"

    @property
    def situation_file(self) -> Path:
        """What the start rests on: profile, plan, facts (JSON)."""
        return self.directory / "situation.json"

    @property
    def history_file(self) -> Path:
        """Good starts of the past on this machine (JSON); outlives deployments."""
        return self.directory.parent / "history.json"

    @property
    def samples_file(self) -> Path:
        """What the supervisor saw, JSON lines; the older half is `.1`."""
        return self.directory / "samples.jsonl"

    @property
    def evidence_directory(self) -> Path:
        """Evidence of failures, one file each, captured before the engine was taken down."""
        return self.directory / "evidence"

    @property
    def log_file(self) -> Path:
        """The engine's output; older parts are `.1`, `.2`, …"""
        return self.directory / "engine.log"

    @property
    def events_file(self) -> Path:
        """Events of the last start, JSON lines."""
        return self.directory / "events.jsonl"

    def read(self) -> Deployment | None:
        """The record, or None when nothing was ever started.

        Raises:
            ConfigError: the file is damaged or written by a newer dsctl.
        """
        try:
            text = self.state_file.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                f"{self.state_file} cannot be read: {error.strerror}",
                remedy=f"make it readable for you (`ls -l {self.state_file}`)",
            ) from None
        return self._parse(text)

    def write(self, deployment: Deployment) -> None:
        """Replace the record."""
        write_atomically(self.state_file, deployment.model_dump_json(indent=2) + "\n", mode=0o600)

    @contextmanager
    def change(
        self,
        me: ProcessIdentity | None,
        *,
        wait: bool,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[None]:
        """Hold the right to change the deployment; `me` is who may be told to cancel (or nobody).

        Raises:
            LockBusyError: another dsctl holds it (only without `wait`).
        """
        with exclusive(
            self.lock_file, holder=me.model_dump_json() if me else "", wait=wait, on_wait=on_wait
        ):
            yield

    def _parse(self, text: str) -> Deployment:
        from pydantic import ValidationError

        remedy = f"stop the engine by hand if it runs, then remove {self.state_file}"
        try:
            version = json.loads(text).get("version")
            if isinstance(version, int) and version > STATE_VERSION:
                raise ConfigError(
                    f"{self.state_file}: version {version} was written by a newer dsctl",
                    remedy="use that dsctl, or take the deployment down with it first",
                )
            return Deployment.model_validate_json(text)
        except (ValueError, AttributeError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{self.state_file} is damaged: {reason}", remedy=remedy) from None


def lock_holder(busy: LockBusyError) -> ProcessIdentity | None:
    """The process that holds the lock, if it has written itself down."""
    try:
        return ProcessIdentity.model_validate_json(busy.holder)
    except ValueError:
        return None
