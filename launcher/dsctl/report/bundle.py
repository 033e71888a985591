"""The evidence bundle: everything that a report rests on, without what names a machine."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dsctl.errors import ConfigError

#: Files of a run that go into the bundle; the grading key maps labels to paths and stays out.
_RUN_FILES = ("manifest.json", "suite.json", "answers/*.json", "grading/session.json")
_GRADES = ("grading/grades/*.json", "grading/locked.json")


def write_bundle(
    out: Path,
    documents: dict[str, str],
    runs: Sequence[Path],
    benches: Sequence[Path],
    redact: Callable[[str], str],
) -> list[str]:
    """Write a `.tar.gz` of the documents and the redacted files; names of its members.

    The archive is the same for the same content: no times, users or modes of this machine.

    Raises:
        ConfigError: it cannot be written.
    """
    members = dict(documents)
    for number, run in enumerate(runs, start=1):
        for pattern in (*_RUN_FILES, *_GRADES):
            for file in sorted(run.glob(pattern)):
                name = f"run-{number}/{file.relative_to(run)}"
                members[name] = _redacted(file, redact)
    for number, bench in enumerate(benches, start=1):
        members[f"bench-{number}.json"] = _redacted(bench, redact)
    try:
        with tarfile.open(out, "w:gz") as archive:
            for name, text in members.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"evidence/{name}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise ConfigError(
            f"--bundle {out}: {error.strerror}", remedy="choose another file"
        ) from None
    return list(members)


def _redacted(file: Path, redact: Callable[[str], str]) -> str:
    """JSON with every text in it redacted (keys and numbers stay)."""

    def walk(value: object) -> object:
        if isinstance(value, str):
            return redact(value)
        if isinstance(value, list):
            return [walk(entry) for entry in value]
        if isinstance(value, dict):
            return {key: walk(entry) for key, entry in value.items()}
        return value

    document = json.loads(file.read_text(encoding="utf-8"))
    return json.dumps(walk(document), ensure_ascii=False, indent=1)
