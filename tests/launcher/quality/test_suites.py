"""The shipped suites: frozen, and answerable: right answers pass, wrong ones do not."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

from dsctl.errors import ConfigError
from dsctl.paths import shipped
from dsctl.quality.answers import Answer, Outcome, StoredCall
from dsctl.quality.catalog import load_suite, parse_suite, suite_names
from dsctl.quality.checks import run_check
from dsctl.quality.programs import case_score
from dsctl.quality.schema import Case
from dsctl.quality.smoke import smoke_suite

DETERMINISTIC = ("arithmetic", "retrieval", "structured", "tools")
CASES = [(s, case) for s in DETERMINISTIC for case in load_suite(s).cases]


def perfect(case: Case) -> Answer:
    """The answer that the case's checks ask for."""
    text, calls = "", []
    for check in case.checks:
        if check.tool_calls:
            calls = [
                StoredCall(id=str(i), name=c["name"], arguments=json.dumps(c["arguments"]))
                for i, c in enumerate(check.tool_calls)
            ]
        if check.json_value is not None:
            text = json.dumps(check.json_value)
        if check.number is not None:
            text = f"First 3, then {check.number:g}"
        if check.regex is not None:
            text = "It is " + check.regex.strip("\\b") + "."
        if check.exact is not None:
            text = check.exact
    thought = next((c.reasoning_exact for c in case.checks if c.reasoning_exact), "")
    return Answer(text=text, reasoning=thought, tool_calls=tuple(calls), outcome=Outcome.STOP)


@pytest.mark.parametrize(("suite", "case"), CASES, ids=[f"{s}-{c.id}" for s, c in CASES])
def test_the_right_answer_passes_and_a_wrong_one_does_not(suite: str, case: Case) -> None:
    assert case_score(case, [perfect(case)]) == 100
    wrong = Answer(
        text="I cannot say, perhaps 999999991. <|tool▁calls▁begin|>",
        tool_calls=(StoredCall(id="0", name="nothing", arguments="{}"),),
        outcome=Outcome.STOP,
    )
    assert case_score(case, [wrong]) == 0


def test_shipped_suites_are_frozen() -> None:
    frozen = (resources.files("dsctl.quality") / "suites" / "FROZEN").read_text()
    now = {
        f"{suite.suite}-{suite.version}": suite.digest
        for name in suite_names()
        if name != "smoke"
        for suite in [load_suite(name)]
    }
    assert now == dict(line.split() for line in frozen.splitlines()), (
        "a changed suite is another suite: give it a new version and freeze that"
    )


def test_one_changed_letter_makes_another_suite() -> None:
    source = (resources.files("dsctl.quality") / "suites" / "reasoning.yaml").read_text()
    same = parse_suite("# only a comment\n" + source, "x.yaml")
    other = parse_suite(source.replace("weight: 16", "weight: 15", 1), "x.yaml")
    assert same.digest == load_suite("reasoning").digest
    assert other.digest != same.digest


def test_arithmetic_answers_are_right() -> None:
    for case in load_suite("arithmetic").cases:
        match = re.match(r"What is ([-\d+*/() ]+)\?", case.turns[0].user)
        if match:
            assert case.checks[0].number == eval(match.group(1)), case.id


def test_the_smoke_suite_asks_what_the_canary_knows() -> None:
    suite = smoke_suite(shipped("canary", "questions.yaml"))
    assert len(suite.cases) > 30
    assert suite.request["temperature"] == 0
    for case in suite.cases:
        assert case_score(case, [perfect(case)]) == 100, case.id


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("suite: [", "is not YAML"),
        ("suite: x\nversion: 1\ntitle: t\nabout: a\ncases: []\nextra: 1", "key extra"),
        (
            "suite: x\nversion: 1\ntitle: t\nabout: a\n"
            "cases: [{id: a, title: t, turns: [{user: u}], checks: [{regex: '('}]}]",
            r"cases.0.checks.0.regex: .*not a regular expression",
        ),
        (
            "suite: x\nversion: 1\ntitle: t\nabout: a\n"
            "cases: [{id: a, title: t, turns: [{user: u}]}]",
            "neither checks nor a rubric",
        ),
    ],
)
def test_a_bad_suite_names_file_and_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_suite(text, "mine.yaml")
    assert "mine.yaml" in caught.value.message


@pytest.mark.parametrize(
    "leak",
    [
        "</think> yes",
        "<|tool▁calls▁begin|>",
        "<|DSML|invoke name=",
        "<tool_call>{}",
        "<function_calls>",
    ],
)
def test_leaked_markup_is_found_and_ordinary_text_is_not(leak: str) -> None:
    from dsctl.quality.schema import Check

    def ok(text: str) -> bool:
        return run_check(Check(no_markup=True), Answer(text=text, outcome=Outcome.STOP)).ok

    assert not ok(leak)
    assert ok("if a < b | c > d: print('<b>think</b>') # I think | so")
