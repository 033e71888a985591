"""Blind grading: anonymous items in shuffled order; who they are is opened after the lock."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from dsctl.errors import ConfigError, NotGoodError
from dsctl.files import read_text, write_atomically
from dsctl.model.base import Value
from dsctl.quality.answers import Answer, CaseRecord
from dsctl.quality.grades import Grade
from dsctl.quality.rundir import RunDirectory
from dsctl.quality.schema import Suite

T = TypeVar("T", bound=Value)

#: Names by which models give themselves away.
_IDENTITIES = [
    "deepseek",
    "gpt",
    "chatgpt",
    "openai",
    "claude",
    "anthropic",
    "qwen",
    "llama",
    "gemini",
    "gemma",
    "mistral",
    "mixtral",
    "grok",
    "glm",
    "kimi",
    "minimax",
    "vllm",
    "sglang",
    "moet",
    "dspark",
]


class Item(Value):
    """What a grader sees: a label, the case, the text of each answer. No timing, no identity."""

    label: str
    case: str
    answers: tuple[str, ...]


class Session(Value):
    """A grading session: items in the order in which they are shown."""

    suite: str
    items: tuple[Item, ...]


class Key(Value):
    """Which run each label is. Kept apart from the session and opened by the lock."""

    runs: dict[str, str]
    digests: dict[str, str] = Field(default_factory=dict)


class Lock(Value):
    """The scores are final: digest of all grades, and when."""

    grades_digest: str
    locked: float


def anonymise(text: str, names: Sequence[str] = ()) -> str:
    """The text with the names of models (and `names`) replaced."""
    parts = sorted({*_IDENTITIES, *(n for n in names if n)}, key=len, reverse=True)
    pattern = r"(?i)(?<![a-z])(?:" + "|".join(re.escape(p) for p in parts) + r")[\w.-]*"
    return re.sub(pattern, "[model]", text)


def shuffle(
    records: Mapping[str, Mapping[str, CaseRecord]], suite: Suite, names: Sequence[str], seed: int
) -> tuple[Session, Key]:
    """A session of all answered cases of all runs (`records`: run -> case -> record)."""
    rng = random.Random(seed)
    pairs = [(run, case) for run, cases in records.items() for case in cases]
    rng.shuffle(pairs)
    labels = [f"{rng.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}{n:02d}" for n in range(1, len(pairs) + 1)]
    items, runs, digests = [], {}, {}
    for label, (run, case) in zip(labels, pairs, strict=True):
        record = records[run][case]
        texts = tuple(anonymise(shown_text(answer), names) for answer in record.answers)
        items.append(Item(label=label, case=case, answers=texts))
        runs[label] = run
        digests[label] = _digest(record)
    return Session(suite=suite.name, items=tuple(items)), Key(runs=runs, digests=digests)


def shown_text(answer: Answer) -> str:
    """The visible answer; tool calls as text. Reasoning is not shown: its length would tell."""
    calls = [f"[calls {c.name}({c.arguments})]" for c in answer.tool_calls]
    return "\n".join([answer.text, *calls]).strip() or "[no visible answer]"


class GradingDirectory:
    """A session on disk: `session.json`, `key.json`, `grades/GRADER.json`, `locked.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, runs: Sequence[RunDirectory], seed: int) -> Session:
        """Open the session, making it from the runs' answers when there is none yet.

        Raises:
            ConfigError: runs of different suites, or nothing to grade.
        """
        if (self.path / "session.json").exists():
            return self.session()
        suites = {run.suite().name for run in runs}
        if len(suites) != 1:
            raise ConfigError(
                f"these runs are of different suites: {', '.join(sorted(suites))}",
                remedy="grade runs of one suite together",
            )
        records = {str(run.path.resolve()): _answered(run) for run in runs}
        if not any(records.values()):
            raise NotGoodError(
                "there is no answer to grade yet", remedy="`dsctl quality run` first"
            )
        names = [run.manifest().conditions.model for run in runs]
        session, key = shuffle(records, runs[0].suite(), names, seed)
        (self.path / "grades").mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "key.json", key.model_dump_json(), mode=0o600)
        write_atomically(self.path / "session.json", session.model_dump_json(indent=1))
        return session

    def session(self) -> Session:
        """The session as it was begun."""
        return self._read("session.json", Session)

    @property
    def is_locked(self) -> bool:
        """Whether the scores are final."""
        return (self.path / "locked.json").exists()

    def grades(self) -> dict[str, list[Grade]]:
        """Grades by label."""
        found: dict[str, list[Grade]] = {}
        for file in sorted((self.path / "grades").glob("*.json")):
            for entry in json.loads(file.read_text()):
                grade = Grade.model_validate(entry)
                found.setdefault(grade.label, []).append(grade)
        return found

    def save(self, grade: Grade) -> None:
        """Store a grade (a grader's earlier grade of the same item is replaced).

        Raises:
            NotGoodError: the scores are locked.
        """
        if self.is_locked:
            raise NotGoodError(
                "these scores are locked: the identities have been revealed",
                remedy="grade in a new session (`--session DIR`)",
            )
        file = self.path / "grades" / f"{re.sub(r'[^a-z0-9-]', '_', grade.grader.lower())}.json"
        there = json.loads(file.read_text()) if file.exists() else []
        kept = [g for g in there if g["label"] != grade.label]
        entries = [*kept, grade.model_dump(mode="json")]
        write_atomically(file, json.dumps(entries, ensure_ascii=False, indent=1))

    def lock(self, now: Callable[[], float] = time.time) -> Key:
        """Make the scores final and open the key.

        Raises:
            NotGoodError: an item has no grade at all.
        """
        grades = self.grades()
        missing = [item.label for item in self.session().items if not grades.get(item.label)]
        if missing:
            raise NotGoodError(
                f"not graded yet: {', '.join(missing)}", remedy="grade them, then lock"
            )
        if not self.is_locked:
            lock = Lock(grades_digest=self._grades_digest(), locked=now())
            write_atomically(self.path / "locked.json", lock.model_dump_json())
        return self.key()

    def key(self) -> Key:
        """Who is who.

        Raises:
            NotGoodError: not locked yet, or grades were changed after the lock.
        """
        if not self.is_locked:
            raise NotGoodError("not locked yet: identities stay hidden", remedy="lock first")
        lock = self._read("locked.json", Lock)
        if lock.grades_digest != self._grades_digest():
            raise NotGoodError(
                f"grades under {self.path} were changed after the lock", remedy="grade again"
            )
        return self._read("key.json", Key)

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        try:
            return kind.model_validate_json(read_text(path))
        except ValidationError:
            raise ConfigError(
                f"{path} is damaged", remedy=f"move {self.path} away and grade again"
            ) from None

    def _grades_digest(self) -> str:
        files = sorted((self.path / "grades").glob("*.json"))
        return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def _answered(run: RunDirectory) -> dict[str, CaseRecord]:
    return {case: record for case, record in run.records().items() if record.complete}


def _digest(record: CaseRecord) -> str:
    return hashlib.sha256(record.model_dump_json().encode()).hexdigest()
