"""The bundle: everything known about a deployment, redacted, for a bug report or a second look."""

from __future__ import annotations

import io
import json
import re
import socket
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError, NotGoodError
from dsctl.model.diagnosis import Diagnosis
from dsctl.supervise.evidence import (
    diagnose_parts,
    newest,
    pids_seen,
    tail_samples,
)
from dsctl.supervise.kernellog import kernel_lines, since_boot
from dsctl.supervise.logtail import log_parts

BUNDLE_VERSION = 1
_ROOT = "dsctl-bundle"
_LOG_BYTES = 8 << 20
#: No member of a bundle of ours is larger; what is, is not read.
_MEMBER_MAX_BYTES = 64 << 20
_ADDRESS = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


def make_bundle(state: StateDirectory, out: Path, now: float) -> dict[str, int]:
    """Write the bundle (`.tar.gz`); its members with their sizes in bytes.

    Raises:
        NotGoodError: nothing was ever started.
        ConfigError: it cannot be written.
    """
    from dsctl import __version__

    clean = Cleaner()
    deployment = state.read()
    if deployment is None:
        raise NotGoodError(
            "there is nothing to bundle: nothing was started yet",
            remedy="start with `dsctl up --profile cpu-canary`",
        )
    members = {"state.json": clean.document(deployment.model_dump(mode="json"))}
    members |= _situation(state, clean)
    members["engine.log"] = clean.text("\n".join(_log_tail(state)))
    seen = pids_seen(deployment, tail_samples(state))
    kernel = kernel_lines(since_boot(deployment.started), seen)
    members["kernel.log"] = clean.text("\n".join(kernel))
    for path in (state.events_file, *log_parts(state.samples_file)):
        with suppress(OSError):
            members[path.name] = clean.lines(path.read_text(errors="replace").splitlines())
    for path in sorted(state.evidence_directory.glob("*.json")):
        with suppress(OSError, ValueError):
            members[f"evidence/{path.name}"] = clean.document(json.loads(path.read_text()))
    captured = newest(state)
    if captured is not None:
        members["diagnosis.json"] = clean.document(captured.diagnosis)
    members["manifest.json"] = json.dumps(
        {
            "version": BUNDLE_VERSION,
            "dsctl": __version__,
            "t": now,
            "profile": deployment.profile,
            "phase": deployment.phase,
            "last_cause": deployment.last_cause,
            "members": sorted(members),
        },
        indent=1,
    )
    return _write(out, members)


def is_bundle(name: str) -> bool:
    """Whether a file is a bundle: a tar with our manifest."""
    with suppress(OSError, tarfile.TarError, EOFError), tarfile.open(name) as archive:
        return any(member.name == f"{_ROOT}/manifest.json" for member in archive)
    return False


def diagnose_bundle(name: str) -> Diagnosis:
    """Diagnose a bundle again: the evidence of its last failure, else its log as it was.

    Raises:
        ConfigError: it cannot be read.
    """
    import tempfile

    members = _read(name)
    evidence = sorted(key for key in members if key.startswith("evidence/"))
    log, kernel, container = members.get("engine.log", ""), members.get("kernel.log", ""), None
    if evidence:
        captured = json.loads(members[evidence[-1]])
        log, kernel = "\n".join(captured["log"]), "\n".join(captured["kernel"])
        container = captured["container"]
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(log)
        file.flush()
        return diagnose_parts([Path(file.name)], kernel.splitlines(), container)


class Cleaner:
    """Takes out secrets, users, hosts and addresses; keeps what a diagnosis reads."""

    def __init__(self) -> None:
        from dsctl.diagnose.redact import redact
        from dsctl.host.redact import redact_text

        host = socket.gethostname()
        self._rules: tuple[Callable[[str], str], ...] = (redact, redact_text)
        self._host = re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])") if host else None

    def text(self, text: str) -> str:
        """One text."""
        for rule in self._rules:
            text = rule(text)
        text = _ADDRESS.sub("<address>", text)
        return self._host.sub("<host>", text) if self._host is not None else text

    def document(self, value: Any) -> str:
        """JSON with every text in it cleaned; keys and numbers stay."""
        return json.dumps(self._walk(value), ensure_ascii=False, indent=1)

    def lines(self, lines: Iterable[str]) -> str:
        """JSON lines, cleaned; a half-written one is left out."""
        kept = []
        for line in lines:
            with suppress(ValueError):
                kept.append(json.dumps(self._walk(json.loads(line)), ensure_ascii=False))
        return "\n".join(kept) + "\n"

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._walk(entry) for entry in value]
        if isinstance(value, dict):
            return {key: self._walk(entry) for key, entry in value.items()}
        return value


def _situation(state: StateDirectory, clean: Cleaner) -> dict[str, str]:
    from dsctl.host.redact import redact
    from dsctl.supervise.situation import read_situation

    situation = read_situation(state)
    if situation is None:
        return {}
    found = {
        "facts.json": clean.document(redact(situation.facts).model_dump(mode="json")),
        "profile.json": clean.document(situation.profile.model_dump(mode="json", by_alias=True)),
    }
    if situation.plan is not None:
        found["plan.json"] = clean.document(situation.plan.model_dump(mode="json"))
    return found


def _log_tail(state: StateDirectory) -> Iterator[str]:
    left = _LOG_BYTES
    texts: list[str] = []
    for path in reversed(log_parts(state.log_file)):
        if left <= 0:
            break
        with suppress(OSError), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - left))
            data = file.read(left)
            texts.append(data.decode(errors="replace"))
            left -= len(data)
    for text in reversed(texts):
        yield from text.splitlines()


def _write(out: Path, members: dict[str, str]) -> dict[str, int]:
    if not out.name.endswith((".tar.gz", ".tgz", ".tar")):
        raise ConfigError(f"-o {out}: is no name of a bundle", remedy="end it in `.tar.gz`")
    sizes = {}
    mode: Any = "w" if out.suffix == ".tar" else "w:gz"
    try:
        with tarfile.open(out, mode) as archive:
            for name, text in members.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"{_ROOT}/{name}")
                entry.size = sizes[name] = len(data)
                archive.addfile(entry, io.BytesIO(data))
        out.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"-o {out}: {error.strerror}", remedy="choose another file") from None
    return sizes


def _read(name: str) -> dict[str, str]:
    members = {}
    try:
        with tarfile.open(name) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and member.size <= _MEMBER_MAX_BYTES:
                    text = file.read().decode(errors="replace")
                    members[member.name.removeprefix(f"{_ROOT}/")] = text
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}", remedy="make it again") from None
    return members
