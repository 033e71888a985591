"""`dsctl facts` and `dsctl preflight` as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml import standin

HOSTS = Path(__file__).parents[2] / "hosts"


def dsctl(
    *args: str, text_in: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsctl", *args],
        input=text_in,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {}), "NO_COLOR": "1", "COLUMNS": "120"},
    )


def test_facts_piped_into_preflight_give_json_alone_on_stdout() -> None:
    facts = dsctl("facts")
    assert facts.returncode == 0
    found = dsctl("preflight", "--facts", "-", "--format", "json", text_in=facts.stdout)
    report = json.loads(found.stdout)
    assert set(report) == {"profile", "verdict", "findings"}
    for finding in report["findings"]:
        assert set(finding) == {"id", "status", "summary", "detail", "remedy"}
    assert found.returncode == (1 if report["verdict"] == "fail" else 0)


def test_the_canary_can_run_on_the_machine_of_these_tests() -> None:
    found = dsctl("preflight", "--profile", "cpu-canary", "--format", "json", "--set", "port=18741")
    report = json.loads(found.stdout)
    hardware = [f for f in report["findings"] if f["id"].startswith(("host.", "net.", "profile."))]
    assert [f for f in hardware if f["status"] == "fail"] == []


def test_a_recorded_host_reads_worst_first_with_remedies() -> None:
    found = dsctl("preflight", "--sysroot", str(HOSTS / "swapping"), "-p", "single96-resident")
    assert found.returncode == 1
    lines = found.stdout
    assert lines.index("host.swap") < lines.index("gpu.driver")
    assert "→" in lines
    assert "fail:" in lines
    assert "Traceback" not in found.stderr


def test_ignored_failures_let_it_pass() -> None:
    host = ["--sysroot", str(HOSTS / "rented-vm"), "--profile", "cpu-canary"]
    assert dsctl("preflight", *host).returncode == 1
    assert dsctl("preflight", *host, "--ignore", "net.port").returncode == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--facts", "/no/such/file"], "--facts /no/such/file"),
        (["--sysroot", "/no/such/dir"], "not a directory"),
        (["--profile", "single69-resident"], "did you mean"),
        (["--ignore", "host.swop"], "host.swop"),
        (["--fix", "--sysroot", "/"], "this machine"),
        (["--engine", "podman"], "--engine podman"),
        (["--sysroot", "/", "--facts", "-"], "exclude each other"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], says: str) -> None:
    found = dsctl("preflight", *args)
    assert found.returncode == 2
    assert says in found.stderr
    assert found.stdout == ""
    assert "Traceback" not in found.stderr


def test_a_wedged_driver_still_leaves_a_report(tmp_path: Path) -> None:
    library = standin.build(tmp_path)
    recorded = standin.read_json(HOSTS / "server-two-socket")
    answers = standin.write_answers(recorded, tmp_path / "answers", hang="nvmlInitWithFlags")
    env = standin.environment(library, answers)
    found = dsctl("preflight", "-p", "single96-resident", "--format", "json", env=env)
    findings = {f["id"]: f for f in json.loads(found.stdout)["findings"]}
    assert "does not answer" in findings["gpu.present"]["summary"]
    assert findings["host.memory-total"]["status"] != "skip"


def test_facts_go_into_a_file_and_name_nobody(tmp_path: Path) -> None:
    target = tmp_path / "facts.json"
    found = dsctl("facts", "--sysroot", str(HOSTS / "workstation-dual-healthy"), "-o", str(target))
    assert found.returncode == 0
    assert found.stdout == ""
    values = json.loads(target.read_text())
    assert values["redacted"] is True
    assert dsctl("preflight", "--facts", str(target), "-p", "dual96-native").returncode == 0
