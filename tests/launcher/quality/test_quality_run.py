"""Runs against the scripted endpoint: outcomes told apart, resumed, never half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsctl.errors import ConfigError, NotGoodError
from dsctl.measure.subject import find_subject
from dsctl.quality.answers import Outcome
from dsctl.quality.catalog import load_suite, parse_suite
from dsctl.quality.compare import compare
from dsctl.quality.run import run_suite
from dsctl.quality.rundir import RunDirectory
from dsctl.quality.schema import Suite
from dsctl.quality.scored import read_result
from tests.launcher.quality.texts import looping_texts
from tests.support.endpoint import Endpoint, Reply, words
from tests.support.endpoint.command import main

THREE = parse_suite(
    """
suite: three
version: 1
title: Three questions
about: For tests.
request: {max_tokens: 50}
cases:
  - {id: one, title: One, turns: [{user: "one?"}], checks: [{exact: "1"}]}
  - {id: two, title: Two, turns: [{user: "two?"}], checks: [{exact: "2"}]}
  - {id: pair, title: Pair, turns: [{user: "three?"}, {user: "and four?"}], checks: [{exact: "4"}]}
""",
    "three.yaml",
)
RIGHT = {"one?": "1", "two?": "2", "three?": "3", "and four?": "4"}


def right(body: dict[str, Any]) -> Reply:
    return Reply(words(RIGHT[body["messages"][-1]["content"]]), prompt_tokens=7)


def run(suite: Suite, server: Endpoint, out: Path, **options: Any) -> Any:
    return run_suite(suite, find_subject(server.url, None), out, now=lambda: 1.0, **options)


def test_a_run_stores_everything_and_carries_the_conversation(tmp_path: Path) -> None:
    with Endpoint(right) as server:
        done = run(THREE, server, tmp_path)
        last = server.served[-1].body
    assert done.complete
    assert [m["content"] for m in last["messages"]] == ["three?", "3", "and four?"]
    assert last["max_tokens"] == 50
    assert last["stream_options"] == {"include_usage": True}
    assert not {"temperature", "top_p", "seed", "top_k"} & set(last)
    record = RunDirectory(tmp_path).record("pair")
    assert record is not None
    assert [a.text for a in record.answers] == ["3", "4"]
    assert [a.finish_reason for a in record.answers] == ["stop", "stop"]
    result = read_result(tmp_path)
    assert (result.final, result.requests, result.tokens) == (100, 4, 4)


def test_an_interrupted_run_resumes_without_asking_again(tmp_path: Path) -> None:
    asked = []

    def dies(body: dict[str, Any]) -> Reply:
        question = body["messages"][-1]["content"]
        asked.append(question)
        if question == "two?":
            return Reply(("2", "2"), fault="cut", fault_after=1)
        return right(body)

    with Endpoint(dies) as server:
        first = run(THREE, server, tmp_path)
        server.responder = right
        second = run(THREE, server, tmp_path)
        again = [s.body["messages"][-1]["content"] for s in server.served]
    assert first.failed == ("two",)
    assert second.complete
    assert again == ["one?", "two?", "three?", "and four?", "two?"]
    assert read_result(tmp_path).final == 100


def test_a_window_too_small_for_every_case_is_said_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    with Endpoint(right, max_model_len=177) as server:
        with pytest.raises(NotGoodError, match="needs 178 tokens, the window is 177"):
            run(THREE, server, tmp_path / "run")
        assert not server.served
    assert not (tmp_path / "run").exists()


def test_an_endpoint_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    suite = load_suite("arithmetic")
    with Endpoint(lambda body: Reply(("1",), fault="cut")) as server:
        done = run(suite, server, tmp_path)
        assert len(server.served) == 3
    assert len(done.failed) == len(suite.cases)


def test_nothing_is_ever_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with Endpoint(right) as server:
        run(THREE, server, tmp_path, only=["one"])
        monkeypatch.setattr("os.fsync", stop)  # the worst moment: written, not yet renamed
        with pytest.raises(KeyboardInterrupt):
            run(THREE, server, tmp_path)
        monkeypatch.undo()
        assert [p.name for p in (tmp_path / "answers").iterdir()] == ["one.json"]
        assert run(THREE, server, tmp_path).complete


def test_another_suite_or_configuration_is_refused(tmp_path: Path) -> None:
    with Endpoint(right, models=("scripted", "other")) as server:
        run(THREE, server, tmp_path)
        with pytest.raises(ConfigError, match="another suite"):
            run(load_suite("tools"), server, tmp_path)
        with pytest.raises(ConfigError, match="another configuration"):
            run_suite(THREE, find_subject(server.url, "other"), tmp_path)
        with pytest.raises(ConfigError, match="another request parameters"):
            run(THREE, server, tmp_path, extra={"temperature": 1})


def test_a_suite_changed_after_the_run_is_noticed(tmp_path: Path) -> None:
    with Endpoint(right) as server:
        run(THREE, server, tmp_path)
    file = tmp_path / "suite.json"
    file.write_text(file.read_text().replace('"exact": "2"', '"exact": "3"'))
    with pytest.raises(NotGoodError, match="changed after the run"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(words("The answer."), reasoning=words("I think.")), Outcome.STOP),
        (Reply(words("The answer.")), Outcome.EMPTY_THINKING),
        (Reply((), reasoning=words("I think.")), Outcome.EMPTY),
        (Reply(words("So"), reasoning=words("I think."), finish="length"), Outcome.LENGTH),
        (Reply((), reasoning=words(looping_texts()["exact paragraph"])), Outcome.LOOP),
        (Reply(words("a b c"), fault="cut", fault_after=2), Outcome.FAILED),
    ],
)
def test_outcomes_are_told_apart(tmp_path: Path, reply: Reply, outcome: Outcome) -> None:
    with Endpoint(lambda body: reply) as server:
        run(load_suite("reasoning"), server, tmp_path, only=["C6"])
    record = RunDirectory(tmp_path).record("C6")
    assert record is not None
    assert record.answers[-1].outcome is outcome


def test_a_hard_loop_is_stopped_long_before_the_limit(tmp_path: Path) -> None:
    loop = words(looping_texts()["two alternating thoughts"] * 6)
    with Endpoint(lambda body: Reply((), reasoning=loop, gap_s=0.00001)) as server:
        run(load_suite("reasoning"), server, tmp_path, only=["C6"])
        assert len(server.served[0].sent_s) < len(loop)
    answer = RunDirectory(tmp_path).record("C6").answers[0]  # type: ignore[union-attr]
    assert answer.outcome is Outcome.LOOP
    assert "repeated" in answer.loop or "something new" in answer.loop
    assert read_result(tmp_path).outcomes == {"loop": 1}


def test_two_runs_are_compared_case_by_case(tmp_path: Path) -> None:
    with Endpoint(right) as server:
        run(THREE, server, tmp_path / "a")
        server.responder = lambda body: Reply(words("2"))
        run(THREE, server, tmp_path / "b")
        run(load_suite("tools"), server, tmp_path / "c", only=["refuse"])
    found = compare(read_result(tmp_path / "a"), read_result(tmp_path / "b"))
    assert [(c.case, c.delta) for c in found.changes] == [("one", -100), ("two", 0), ("pair", -100)]
    assert found.p_value == 0.5  # two changes: 2 of 4 sign patterns are as large
    assert "names no cause" in found.verdict
    with pytest.raises(NotGoodError, match="different suites"):
        compare(read_result(tmp_path / "a"), read_result(tmp_path / "c"))


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "three.yaml"
    suite.write_text(json.dumps(THREE.model_dump(mode="json", exclude_unset=True)))
    with Endpoint(right) as server:
        argv = [
            "quality",
            "run",
            "-s",
            str(suite),
            "-o",
            str(tmp_path / "r"),
            "--endpoint",
            server.url,
        ]
        assert main([*argv, "--format", "json"]) == 0
        printed = json.loads(capfd.readouterr().out)
        server.responder = lambda body: Reply(words("9"))
        assert main([*argv, "--case", "nine"]) == 2
        assert "--case nine" in capfd.readouterr().err
        assert main([*argv[:-4], "-o", str(tmp_path / "w"), *argv[-2:]]) == 1
    assert printed["final"] == 100
    assert main(["quality", "compare", str(tmp_path / "r"), str(tmp_path / "w")]) == 0
    assert "names no cause" in capfd.readouterr().out
    assert main(["quality", "report", str(tmp_path / "nothing")]) == 2
    assert "not a quality run" in capfd.readouterr().err
