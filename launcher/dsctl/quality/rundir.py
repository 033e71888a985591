"""A run on disk: `manifest.json`, `suite.json`, `answers/CASE.json`, each whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from dsctl.errors import ConfigError, NotGoodError
from dsctl.files import read_text, write_atomically
from dsctl.measure.conditions import Conditions
from dsctl.model.base import Value
from dsctl.quality.answers import CaseRecord
from dsctl.quality.schema import Suite

RUN_VERSION = 1
T = TypeVar("T", bound=Value)


class Manifest(Value):
    """What a run is: its suite by digest, its conditions, and the extra request parameters."""

    version: int = RUN_VERSION
    kind: str = "quality"
    suite: str
    suite_digest: str
    conditions: Conditions
    extra: dict[str, Any] = Field(default_factory=dict)
    created: float
    command: str
    skipped: dict[str, str] = Field(default_factory=dict)


class RunDirectory:
    """One run. Every write replaces a whole file, so an interrupted run is a shorter run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def answers(self) -> Path:
        """Directory of the case records."""
        return self.path / "answers"

    def open(self, suite: Suite, manifest: Manifest) -> Manifest:
        """Start the run, or go on with the one that is there.

        Raises:
            ConfigError: another run is there (other suite, configuration or parameters), or the
                directory cannot be written.
        """
        try:
            self.answers.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--out {self.path}: {error.strerror}", remedy="choose another directory"
            ) from None
        if not (self.path / "manifest.json").exists():
            write_atomically(self.path / "suite.json", _json(suite))
            write_atomically(self.path / "manifest.json", _json(manifest))
            return manifest
        there = self.manifest()
        for what, ours, theirs in (
            ("suite", manifest.suite, there.suite),
            ("configuration", manifest.conditions.digest, there.conditions.digest),
            ("request parameters", manifest.extra, there.extra),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"{self.path} holds a run with another {what}",
                    remedy="give another --out; runs of different things are never mixed",
                )
        return there

    def manifest(self) -> Manifest:
        """The run's manifest.

        Raises:
            ConfigError: there is no run, or it cannot be read.
        """
        return self._read("manifest.json", Manifest)

    def suite(self) -> Suite:
        """The suite as it was when the run began; its digest is checked.

        Raises:
            NotGoodError: it was changed since.
        """
        suite = self._read("suite.json", Suite)
        if suite.digest != self.manifest().suite_digest:
            raise NotGoodError(
                f"{self.path / 'suite.json'} was changed after the run: its digest differs",
                remedy="run the suite again; a changed suite is another suite",
            )
        return suite

    def save(self, record: CaseRecord) -> None:
        """Store a case's record."""
        write_atomically(self.answers / f"{record.case}.json", _json(record))

    def record(self, case: str) -> CaseRecord | None:
        """A case's record, or None when it has not been asked yet."""
        if not (self.answers / f"{case}.json").exists():
            return None
        return self._read(f"answers/{case}.json", CaseRecord)

    def records(self) -> dict[str, CaseRecord]:
        """All records by case, in the suite's order."""
        found = {case.id: self.record(case.id) for case in self.suite().cases}
        return {case: record for case, record in found.items() if record is not None}

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        if not path.is_file():
            raise ConfigError(
                f"{self.path} is not a quality run: {name} is missing",
                remedy="give the directory that `dsctl quality run --out DIR` made",
            )
        try:
            return kind.model_validate_json(read_text(path))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}, key {key}: {first['msg']}", remedy="run it again") from None


def _json(value: Value) -> str:
    return json.dumps(
        value.model_dump(mode="json", exclude_unset=True), ensure_ascii=False, indent=1
    )
