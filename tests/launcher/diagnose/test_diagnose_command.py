"""`dsctl diagnose` as people and programs use it: files, pipes, exit codes, odd inputs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsctl.diagnose.catalog import load_catalog
from dsctl.diagnose.clean import clean_line
from dsctl.errors import ConfigError

LOGS = Path(__file__).parents[2] / "logs"
KV = LOGS / "memory.kv-too-small" / "positive-1.log"
CLEAN = LOGS / "clean" / "clean-1.log"


def _dsctl(
    *args: str, stdin: bytes = b"", home: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    mine = ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    env = os.environ | (dict.fromkeys(mine, str(home)) if home else {})
    return subprocess.run(
        [sys.executable, "-m", "dsctl", "diagnose", *args],
        input=stdin,
        capture_output=True,
        check=False,
        env=env,
    )


def test_a_named_cause_exits_0_and_prints_the_promised_shape() -> None:
    ran = _dsctl(str(KV), "--format", "json")
    answer = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert set(answer) == {"cause", "evidence", "also"}
    assert set(answer["cause"]) == {"id", "title", "remedy"}
    assert answer["cause"]["id"] == "memory.kv-too-small"
    lines = KV.read_bytes().split(b"\n")
    number = next(n for n, line in enumerate(lines, 1) if b"To serve at least" in line)
    assert answer["evidence"][0]["line"] == number


def test_a_clean_log_from_a_pipe_is_unknown_and_exits_1() -> None:
    ran = _dsctl("-", "--format", "json", stdin=CLEAN.read_bytes())
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["cause"]["id"] == "unknown"


def test_text_says_what_where_and_what_to_do() -> None:
    text = _dsctl(str(KV)).stdout.decode()
    assert "[memory.kv-too-small]" in text
    assert "where it shows:" in text
    assert "max_model_len=71680" in text


@pytest.mark.parametrize("make", ["missing", "directory", "broken.gz"])
def test_an_unreadable_file_is_one_line_and_exit_2(tmp_path: Path, make: str) -> None:
    path = tmp_path / make
    if make == "directory":
        path.mkdir()
    elif make == "broken.gz":
        path.write_bytes(gzip.compress(KV.read_bytes())[:200])
    ran = _dsctl(str(path))
    assert ran.returncode == 2
    assert str(path).encode() in ran.stderr.splitlines()[0]
    assert b"Traceback" not in ran.stderr


def test_without_a_file_and_a_deployment_it_says_so(tmp_path: Path) -> None:
    ran = _dsctl(home=tmp_path)
    assert ran.returncode == 2
    assert b"nothing was started" in ran.stderr


@pytest.mark.parametrize("form", ["gzip", "utf-16", "binary", "crlf", "long lines", "no newline"])
def test_odd_files_are_read_as_they_are(tmp_path: Path, form: str) -> None:
    data = KV.read_bytes()
    if form == "gzip":
        data = gzip.compress(data)
    elif form == "utf-16":
        data = KV.read_text().encode("utf-16")
    elif form == "binary":
        data = bytes(range(256)) * 50 + b"\n" + data
    elif form == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif form == "long lines":
        data = (
            b"x" * 5_000_000 + b"\n" + data.replace(b"ValueError", b"y" * 100_000 + b" ValueError")
        )
    else:
        data = data.rstrip(b"\n")
    path = tmp_path / "engine.log"
    path.write_bytes(data)
    ran = _dsctl(str(path), "--format", "json")
    answer = json.loads(ran.stdout)
    assert answer["cause"]["id"] == "memory.kv-too-small"
    assert all(len(evidence["text"]) < 500 for evidence in answer["evidence"])


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:01:00): 79, x",
        "[  123.456789] NVRM: Xid (PCI:0000:01:00): 79, x",
        "[Tue Dec  1 01:20:03 2026] NVRM: Xid (PCI:0000:01:00): 79, x",
        "Dec 01 01:20:03 box kernel: NVRM: Xid (PCI:0000:01:00): 79, x",
        "Dec 01 01:20:03 box kernel: [  123.456789] NVRM: Xid (PCI:0000:01:00): 79, x",
        "2026-12-01T01:20:03.123456+00:00 box kernel: NVRM: Xid (PCI:0000:01:00): 79, x",
        "2026-12-01T01:20:03.123456789Z stderr F NVRM: Xid (PCI:0000:01:00): 79, x",
        "2026-12-01T01:20:03.123456789Z NVRM: Xid (PCI:0000:01:00): 79, x",
        "engine-1  | NVRM: Xid (PCI:0000:01:00): 79, x",
        "kern  :warn  : [  123.456789] NVRM: Xid (PCI:0000:01:00): 79, x",
        "\x1b[0;36mNVRM:\x1b[0m Xid (PCI:0000:01:00): 79, x\r\n",
        '{"log":"NVRM: Xid (PCI:0000:01:00): 79, x\\n","stream":"stderr"}',
        '{"MESSAGE":"NVRM: Xid (PCI:0000:01:00): 79, x","_TRANSPORT":"kernel"}',
    ],
)
def test_what_carried_a_line_is_taken_off(line: str) -> None:
    assert clean_line(line) == "NVRM: Xid (PCI:0000:01:00): 79, x"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("signatures: [{steps: ['ab']}]", "at least 4"),
        ("remedy: 'r {n}', signatures: [{steps: [abcd]}]", "no signature gives"),
        ("signatures: [{steps: [{has: abcd, match: '('}]}]", "not a regular expression"),
        ("colour: red, signatures: [{steps: [abcd]}]", "colour"),
        ("explains: a.b, signatures: [{steps: [abcd]}]", "a.b"),
    ],
)
def test_a_faulty_cause_file_is_named_by_file_line_and_key(
    tmp_path: Path, change: str, says: str
) -> None:
    path = tmp_path / "causes.yaml"
    remedy = "" if "remedy" in change else "remedy: r, "
    entry = f"id: x.y, title: t, meaning: m, order: 5, {remedy}source: s, {change}"
    path.write_text(f"causes:\n  - {{{entry}}}\n")
    contexts = tmp_path / "contexts.yaml"
    contexts.write_text("groups: []\nwrappers: []\n")
    with pytest.raises(ConfigError) as caught:
        load_catalog([path], contexts)
    assert f"{path}:2" in caught.value.message
    assert says in caught.value.message


def test_an_archive_that_is_no_bundle_is_not_read_as_a_log(tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    archive.write_bytes(os.urandom(2000))
    ran = _dsctl(str(archive))
    assert ran.returncode == 2
    assert b"report.tar.gz is no bundle" in ran.stderr
    assert ran.stdout == b""
