"""Runs a suite against a subject, case by case, and goes on where an interrupted run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsctl.client import Client, Event
from dsctl.errors import ConfigError, NotGoodError
from dsctl.files import LockBusyError, exclusive
from dsctl.measure.subject import Subject
from dsctl.quality.answers import CaseRecord
from dsctl.quality.ask import ask_case, request_of
from dsctl.quality.needles import needle_messages
from dsctl.quality.rundir import Manifest, RunDirectory
from dsctl.quality.schema import Case, Suite

#: Requests of a suite that fail this often in a row end the run: the endpoint is gone.
MAX_FAILURES = 3


class Observer(Protocol):
    """Sees what happens, for a person's eyes."""

    def case_begins(self, case: Case, number: int, of: int) -> None:
        """A case is about to be asked."""

    def event(self, event: Event) -> None:
        """Something arrived."""

    def case_ends(self, case: Case, record: CaseRecord) -> None:
        """A case has its record."""


@dataclass(frozen=True)
class RunResult:
    """How far a run came. `failed`: cases whose request failed (asked again on resume)."""

    directory: RunDirectory
    done: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: dict[str, str]

    @property
    def complete(self) -> bool:
        """Every case that could be asked was answered."""
        return not self.failed


def run_suite(
    suite: Suite,
    subject: Subject,
    out: Path,
    *,
    only: Sequence[str] = (),
    extra: dict[str, Any] | None = None,
    command: str = "",
    observer: Observer | None = None,
    now: Callable[[], float] = time.time,
) -> RunResult:
    """Ask every case that has no complete record yet.

    Raises:
        ConfigError: `out` holds another run or another process works there; an unknown case.
        NotGoodError: the window of the subject is too small for every case.
    """
    cases = _chosen(suite, only)
    skipped = {c.id: why for c in cases if (why := too_long(suite, c, subject))}
    if len(skipped) == len(cases):
        raise NotGoodError(
            f"no case of {suite.suite} fits {subject.model}: {next(iter(skipped.values()))}",
            remedy="serve it with a larger `--set max_model_len=N`, or take another suite",
        )
    manifest = Manifest(
        suite=suite.name,
        suite_digest=suite.digest,
        conditions=subject.conditions,
        extra=extra or {},
        created=now(),
        command=command,
        skipped=skipped,
    )
    directory = RunDirectory(out)
    directory.open(suite, manifest)
    try:
        with exclusive(out / ".lock", holder="dsctl quality run"), Client(subject.target) as client:
            done, failed = _ask_all(
                [c for c in cases if c.id not in skipped],
                lambda case: ask_case(
                    client,
                    subject.model,
                    suite,
                    case,
                    messages_of(case, client, subject.model),
                    extra=extra,
                    watch=observer.event if observer else None,
                    now=now,
                ),
                directory,
                observer,
            )
    except LockBusyError:
        raise ConfigError(
            f"{out}: another `dsctl quality run` works there", remedy="wait for it, or use --out"
        ) from None
    return RunResult(directory, tuple(done), tuple(failed), skipped)


def _ask_all(
    cases: Sequence[Case],
    ask: Callable[[Case], CaseRecord],
    directory: RunDirectory,
    observer: Observer | None,
) -> tuple[list[str], list[str]]:
    done, failed, in_a_row = [], [], 0
    for number, case in enumerate(cases, start=1):
        there = directory.record(case.id)
        if there is not None and there.complete:
            done.append(case.id)
            continue
        if in_a_row >= MAX_FAILURES:
            failed.append(case.id)
            continue
        if observer:
            observer.case_begins(case, number, len(cases))
        record = ask(case)
        directory.save(record)
        (done if record.complete else failed).append(case.id)
        in_a_row = 0 if record.complete else in_a_row + 1
        if observer:
            observer.case_ends(case, record)
    return done, failed


def messages_of(case: Case, client: Client, model: str) -> list[dict[str, Any]]:
    """The conversation up to the first question."""
    if case.needle is not None:
        return needle_messages(case.needle, client, model)
    messages = [dict(message) for message in case.history]
    if case.turns[0].system:
        messages.append({"role": "system", "content": case.turns[0].system})
    return [*messages, {"role": "user", "content": case.turns[0].user}]


def too_long(suite: Suite, case: Case, subject: Subject) -> str | None:
    """Why a case cannot fit the window of the subject, or None."""
    window = subject.conditions.max_model_len
    if window is None:
        return None
    prompt = case.needle.tokens if case.needle else 0
    needs = prompt + int(request_of(suite, case).get("max_tokens", 0)) + 128
    return f"needs {needs} tokens, the window is {window}" if needs > window else None


def _chosen(suite: Suite, only: Sequence[str]) -> list[Case]:
    known = [case.id for case in suite.cases]
    for name in only:
        if name not in known:
            raise ConfigError(
                f"--case {name}: the suite {suite.suite} has no such case",
                remedy=f"it has {', '.join(known)}",
            )
    return [case for case in suite.cases if not only or case.id in only]
