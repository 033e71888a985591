"""The grader that is a model: another endpoint, temperature 0, repeated, disagreement kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from pydantic import ValidationError

from dsctl.client import Client, Completion
from dsctl.errors import NotGoodError
from dsctl.quality.blind import Item
from dsctl.quality.grades import Grade, merge_samples
from dsctl.quality.schema import Case, Suite


@cache
def _system() -> str:
    return (resources.files("dsctl.quality") / "judge_prompt.txt").read_text(encoding="utf-8")


def judge_messages(suite: Suite, case: Case, item: Item) -> list[dict[str, Any]]:
    """The conversation with the judge. It never holds a model's name, a time or a token count."""
    parts = []
    for number, turn in enumerate(case.turns, start=1):
        parts.append(f"## Task, turn {number}\n{turn.user.strip()}")
        if number <= len(item.answers):
            answer = item.answers[number - 1]
            parts.append(f"## Answer {item.label}, turn {number}\n<<<\n{answer}\n>>>")
    required = "\n".join(f"- {entry.id}: {entry.text}" for entry in case.rubric)
    dimensions = "\n".join(f"- {d.id}: {d.about}" for d in suite.dimensions)
    parts.append(f"## Required conclusions\n{required}")
    parts.append(f"## Fatal defect\n{case.fatal or 'none is defined'}")
    parts.append(f"## Dimensions\n{dimensions}")
    return [
        {"role": "system", "content": _system()},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def grade_by_judge(
    client: Client,
    model: str,
    suite: Suite,
    case: Case,
    item: Item,
    *,
    repeats: int = 3,
    on_problem: Callable[[str], None] | None = None,
) -> Grade:
    """The judge's grade: `repeats` independent requests, each repeated once if malformed.

    Raises:
        NotGoodError: not one usable grade came back.
    """
    messages = judge_messages(suite, case, item)
    samples, problems = [], []
    for repeat in range(repeats):
        for _attempt in range(2):
            done = client.chat(messages, model=model, temperature=0, seed=repeat, max_tokens=8192)
            grade, problem = read_judgement(done, suite, case, item.label)
            if grade is not None:
                samples.append(grade)
                break
            problems.append(problem)
            if on_problem:
                on_problem(f"{item.label}: {problem}")
    if not samples:
        raise NotGoodError(
            f"the judge gave no usable grade for {item.label}: {problems[-1]}",
            remedy="use a stronger judge (`--judge-model`), or grade it yourself",
        )
    return merge_samples(item.label, f"judge:{model}", samples)


def read_judgement(
    done: Completion, suite: Suite, case: Case, label: str
) -> tuple[Grade | None, str]:
    """(the grade in a judge's reply, or None and why it cannot be used)."""
    if done.failure is not None:
        return None, done.failure.message
    match = re.search(r"\{.*\}", done.text, re.DOTALL)
    if match is None:
        return None, "no JSON object in the reply"
    try:
        document = json.loads(match.group())
    except ValueError as error:
        return None, f"malformed JSON ({error})"
    wanted = {d.id for d in suite.dimensions}
    dimensions = document.get("dimensions")
    if not isinstance(dimensions, dict) or not wanted <= set(dimensions):
        missing = sorted(wanted - set(dimensions or ()))
        return None, f"dimensions missing: {', '.join(missing)}"
    if document.get("fatal") is True and not str(document.get("fatal_evidence", "")).strip():
        return None, "a fatal defect without a quotation"
    items = document.get("items") or {}
    try:
        return Grade(
            label=label,
            grader="judge",
            dimensions={name: float(dimensions[name]) for name in wanted},
            items={entry.id: items[entry.id] is True for entry in case.rubric if entry.id in items},
            fatal=document.get("fatal") is True,
            fatal_evidence=str(document.get("fatal_evidence", "")),
            notes=str(document.get("notes", "")),
        ), ""
    except (ValidationError, TypeError, ValueError) as error:
        return None, " ".join(str(error).split())[:200]
