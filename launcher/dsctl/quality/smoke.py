"""The smoke suite: the known questions of the served model, as a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsctl.errors import ConfigError
from dsctl.quality.schema import Case, Check, Suite, Turn


def smoke_suite(path: Path) -> Suite:
    """A suite of the questions in `path` (a profile's `questions` file).

    Raises:
        ConfigError: unreadable, not YAML, or a question lacks something (named).
    """
    import yaml
    from pydantic import ValidationError

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = document["questions"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{path}: no questions ({problem})", remedy="mend the file") from None
    cases = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, dict) and entry.get("kind") == "free":
            continue  # judged for sanity when the engine starts; there is no right answer
        try:
            cases.append(_case(entry))
        except (KeyError, TypeError, ValidationError) as error:
            problem = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"{path}: question {number}: {problem}", remedy="mend the file"
            ) from None
    return Suite(
        suite="smoke",
        version=1,
        title="Smoke test",
        about="Questions whose exact answers the served model knows by heart.",
        request={"temperature": 0},
        cases=tuple(cases),
    )


def _case(entry: dict[str, Any]) -> Case:
    *history, last = entry["messages"]
    thinking = entry["kind"] == "thinking"
    request: dict[str, Any] = {
        "max_tokens": entry["max_tokens"],
        "chat_template_kwargs": {"thinking": thinking},
    }
    if entry.get("tools"):
        request["tools"] = entry["tools"]
    return Case(
        id=entry["id"],
        title=f"{entry['kind']}: {' '.join(str(last['content']).split())[:60]}",
        history=tuple(history),
        turns=(Turn(user=last["content"]),),
        request=request,
        checks=_checks(entry),
    )


def _checks(entry: dict[str, Any]) -> tuple[Check, ...]:
    checks = [Check(no_markup=True)]
    if entry.get("expected_tool_call"):
        checks.append(Check(tool_calls=(entry["expected_tool_call"],)))
    elif entry.get("expected_match"):
        checks.append(Check(regex=entry["expected_match"]))
    else:
        checks.append(Check(exact=entry["expected"]))
        checks.append(Check(no_tool_call=True))
    if entry.get("expected_reasoning"):
        checks.append(Check(reasoning_exact=entry["expected_reasoning"]))
    return tuple(checks)
