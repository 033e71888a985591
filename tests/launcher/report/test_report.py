"""The report: everything in one file, nothing of the machine in it."""

from __future__ import annotations

import getpass
import json
import re
import socket
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dsctl.bench.run import run_bench
from dsctl.bench.schema import Spec
from dsctl.files import write_atomically
from dsctl.measure.subject import _without_paths, find_subject
from dsctl.quality.blind import GradingDirectory
from dsctl.quality.catalog import load_suite
from dsctl.quality.grades import Grade
from dsctl.quality.run import run_suite
from dsctl.quality.rundir import RunDirectory
from dsctl.report.redact import Redactor
from tests.support.endpoint import Endpoint, Reply, words
from tests.support.endpoint.command import main

SUITE = load_suite("reasoning")
RAW = dict(zip([c.id for c in SUITE.cases], [96, 98, 100, 91, 86, 100, 100, 100], strict=True))
EVIDENCE = 'if :cents <= 0:\n    return "<rejected> & gone"'
SECRETS = (
    "/home/maria/models/ds4",
    "10.20.30.40",
    "gpu-box-7",
    "sk-abcdefgh12345678",
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "aa:bb:cc:dd:ee:ff",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("results")
    text = words("The answer. " + " ".join(SECRETS) + " " * 3 + "and so on. ")
    with Endpoint(lambda body: Reply(text, reasoning=words("Hm."), gap_s=0.001)) as server:
        subject = find_subject(server.url, None)
        command = f"dsctl quality run -o {folder}/reason --endpoint http://10.20.30.40:8000/v1"
        run_suite(SUITE, subject, folder / "reason", command=command)
        spec = Spec(prefill=(20,), decode=(6,), depths=(0, 30), concurrency=(1, 2), runs=2)
        run_bench(spec, subject, folder / "speed.json", command=f"dsctl bench run -o {folder}")
    desk = GradingDirectory(folder / "reason" / "grading")
    for item in desk.begin([RunDirectory(folder / "reason")], 1).items:
        grade = Grade(
            label=item.label,
            grader="person",
            dimensions={d.id: RAW[item.case] for d in SUITE.dimensions},
            fatal=item.case == "C5",
            fatal_evidence=EVIDENCE if item.case == "C5" else "",
            notes="seen on gpu-box-7 by maria under /home/maria/models/ds4",
        )
        desk.save(grade)
    desk.lock()
    return folder / "reason", folder / "speed.json"


def report(results: tuple[Path, Path], out: Path, *more: str) -> str:
    run, bench = results
    assert main(["report", str(out), "--run", str(run), "--bench", str(bench), *more]) == 0
    return out.read_text()


class Checker(HTMLParser):
    """Collects what a browser would fetch, and checks that tags close in order."""

    VOID = frozenset({"meta", "br", "use", "path", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.headings: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("src", "href", "xlink:href"):
            if values.get(name) and not str(values[name]).startswith(("#", "data:")):
                self.fetched.append(str(values[name]))
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_one_file_that_fetches_nothing_and_is_well_formed(
    results: tuple[Path, Path], tmp_path: Path
) -> None:
    text = report(results, tmp_path / "r.html")
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.fetched == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<script" not in text
    assert len(set(checker.ids)) == len(checker.ids)
    steps = zip(checker.headings, checker.headings[1:], strict=False)
    assert all(b - a <= 1 for a, b in steps)  # no level is skipped
    assert checker.headings.count(1) == 1
    assert text.count('role="img" aria-label="Chart') == 4
    for link in re.findall(r'href="#([^"]+)"', text):
        assert link in checker.ids


def test_the_report_says_what_the_protocol_says(results: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("r.html", "r.md"):
        text = report(results, tmp_path / name)
        for part in (
            "87.54",
            "95.70",
            "86 → 35",
            "fatal defect",
            "Interpretation",
            "To reproduce",
            "nothing here says which part caused",
            "tg6 @ d30 (c2)",
            SUITE.name,
            "dsctl quality run",
        ):
            assert part in text, (name, part)
    html = (tmp_path / "r.html").read_text()
    assert "&lt;rejected&gt; &amp; gone" in html
    assert "<rejected>" not in html


def test_nothing_of_the_machine_is_in_report_or_bundle(
    results: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-7")
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu-box-7.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "maria")
    texts = [report(results, tmp_path / "r.html", "--bundle", str(tmp_path / "e.tar.gz"))]
    with tarfile.open(tmp_path / "e.tar.gz") as archive:
        names = archive.getnames()
        texts += [archive.extractfile(n).read().decode() for n in names]  # type: ignore[union-attr]
        assert all(m.mtime == 0 and m.uname == "" for m in archive.getmembers())
    assert len([n for n in names if "/answers/" in n]) == 8
    assert not [n for n in names if "key.json" in n]
    folder = str(results[0].parent)
    for text in texts:
        for secret in (*SECRETS, "maria", folder):
            assert secret not in text
    answer = json.loads(next(t for n, t in zip(names, texts[1:], strict=True) if "C1.json" in n))
    assert (
        "The answer. <path>/ds4 <address> <host> <secret> <uuid> <mac>"
        in answer["answers"][0]["text"]
    )


def test_redaction_leaves_measurements_and_prompts_alone() -> None:
    redact = Redactor(["gpu-box-7"])
    for text in (
        "3/4/5 then 7/4/-2",
        "1.5/2.5 ms",
        "127.0.0.1",
        "and/or",
        "/v1/chat/completions",
        "SELECT a / b",
        "tokens: 28452 in 715.31 s",
        "version 0.32.0",
        "p50/p95/p99 9.5/11.2/14.0",
    ):
        assert redact(text) == text
    assert redact("on GPU-BOX-7:8000") == "on <host>:8000"
    assert redact("~/models/x/y.bin") == "<path>/y.bin"


def test_the_engines_command_loses_paths_and_secrets_only() -> None:
    argv = ("/opt/e/bin/vllm", "--api-key", "hunter2", "--hf-token=abc", "--max-num-batched-tokens")
    kept = _without_paths((*argv, "4096", "--tokenizer-mode", "deepseek_v4", "--x=/a/b"))
    assert kept == (
        "<path>/vllm",
        "--api-key",
        "<secret>",
        "--hf-token=<secret>",
        "--max-num-batched-tokens",
        "4096",
        "--tokenizer-mode",
        "deepseek_v4",
        "--x=<path>/b",
    )


def test_what_cannot_be_reported_is_said_in_one_line(
    results: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "r.pdf"), "--run", str(results[0])]) == 2
    assert ".html or .md" in capfd.readouterr().err
    assert main(["report", str(tmp_path / "r.html")]) == 2
    assert "nothing to report on" in capfd.readouterr().err
    other = tmp_path / "other.json"
    write_atomically(other, results[1].read_text().replace('"scripted"', '"another"'))
    assert (
        main(["report", str(tmp_path / "r.md"), "--bench", str(other), "--run", str(results[0])])
        == 2
    )
    assert "different models: another, scripted" in capfd.readouterr().err
