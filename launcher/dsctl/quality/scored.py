"""Reads a run with its locked grades, if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsctl.quality.blind import GradingDirectory
from dsctl.quality.grades import combine
from dsctl.quality.results import SuiteResult, results_of
from dsctl.quality.rundir import RunDirectory


def read_result(path: Path, sessions: Sequence[Path] = ()) -> SuiteResult:
    """The result of the run at `path`; grades come from its own session or from `sessions`.

    Raises:
        ConfigError: no run there.
        NotGoodError: suite or grades were changed afterwards.
    """
    run = RunDirectory(path)
    manifest, suite = run.manifest(), run.suite()
    grades = {}
    for folder in (path / "grading", *sessions):
        session = GradingDirectory(folder)
        if not session.is_locked:
            continue
        key, by_label = session.key(), session.grades()
        for item in session.session().items:
            if Path(key.runs[item.label]) == path.resolve():
                grades[item.case] = combine(by_label[item.label])
    return results_of(suite, manifest, run.records(), grades)
