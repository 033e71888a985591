"""Decides checks on answers. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dsctl.quality.answers import Answer
from dsctl.quality.schema import Check

#: Markup of tool calls and thinking that a parser should have taken out: DeepSeek's DSML and
#: special tokens, Hermes-like tags, thinking tags.
MARKUP = re.compile(
    r"</?think>|<[|\uff5c][^>\n]{1,40}[|\uff5c]>|[|\uff5c]DSML[|\uff5c]|</?tool_calls?>|<function_calls>|"
    r"<invoke |<tool_call|tool▁call|▁begin▁|▁end▁|\[TOOL_CALLS\]"
)
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class CheckResult:
    """Whether a check holds and, if not, why."""

    ok: bool
    why: str = ""


def run_check(check: Check, answer: Answer) -> CheckResult:
    """Decide one check on one answer."""
    return _DECIDERS[check.kind](check, answer)


def _regex(check: Check, answer: Answer) -> CheckResult:
    ok = re.search(str(check.regex), answer.text) is not None
    return CheckResult(ok, "" if ok else f"no match for {check.regex}")


def _absent(check: Check, answer: Answer) -> CheckResult:
    found = re.search(str(check.absent), answer.text)
    return CheckResult(found is None, f"found {found.group()[:60]!r}" if found else "")


def _exact(check: Check, answer: Answer) -> CheckResult:
    return _same(str(check.exact), answer.text, "the answer")


def _reasoning_exact(check: Check, answer: Answer) -> CheckResult:
    return _same(str(check.reasoning_exact), answer.reasoning, "the reasoning")


def _same(wanted: str, got: str, what: str) -> CheckResult:
    ok = got.strip() == wanted.strip()
    return CheckResult(ok, "" if ok else f"{what} is {got.strip()[:120]!r}, not {wanted[:120]!r}")


def _number(check: Check, answer: Answer) -> CheckResult:
    assert check.number is not None
    found = _NUMBER.findall(answer.text)
    if not found:
        return CheckResult(False, "no number in the answer")
    value = float(found[-1].replace(",", "").replace("−", "-"))
    ok = abs(value - check.number) <= check.tolerance + 1e-9 * abs(check.number)
    return CheckResult(ok, "" if ok else f"the last number is {found[-1]}, not {check.number:g}")


def _tool_calls(check: Check, answer: Answer) -> CheckResult:
    got: list[dict[str, Any]] = []
    for call in answer.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return CheckResult(False, f"arguments are not JSON: {call.arguments[:80]!r}")
        got.append({"name": call.name, "arguments": arguments})
    left = list(got)
    for wanted in check.tool_calls or ():
        if wanted not in left:
            return CheckResult(False, f"no call {_brief(wanted)}; got {_brief(got)}")
        left.remove(wanted)
    return CheckResult(not left, f"an extra call {_brief(left[0])}" if left else "")


def _no_tool_call(check: Check, answer: Answer) -> CheckResult:
    ok = bool(answer.tool_calls) != check.no_tool_call
    return CheckResult(ok, "" if ok else f"called {[c.name for c in answer.tool_calls]}")


def _json_schema(check: Check, answer: Answer) -> CheckResult:
    from jsonschema import Draft202012Validator

    value, problem = _parsed(answer.text)
    if problem:
        return CheckResult(False, problem)
    assert check.json_schema is not None
    error = next(iter(Draft202012Validator(check.json_schema).iter_errors(value)), None)
    if error is None:
        return CheckResult(True)
    where = "/".join(str(part) for part in error.absolute_path) or "the value"
    return CheckResult(False, f"{where}: {error.message[:160]}")


def _json_value(check: Check, answer: Answer) -> CheckResult:
    value, problem = _parsed(answer.text)
    if problem:
        return CheckResult(False, problem)
    ok = value == check.json_value
    return CheckResult(ok, "" if ok else f"got {_brief(value)}")


def _reasoning(check: Check, answer: Answer) -> CheckResult:
    ok = bool(answer.reasoning.strip()) == check.reasoning
    return CheckResult(ok, "" if ok else "no reasoning" if check.reasoning else "it reasoned")


def _no_markup(check: Check, answer: Answer) -> CheckResult:
    found = MARKUP.search(answer.text)
    ok = (found is None) == check.no_markup
    return CheckResult(ok, "" if ok or not found else f"leaked {found.group()!r}")


def _parsed(text: str) -> tuple[Any, str]:
    try:
        return json.loads(text), ""
    except ValueError as error:
        return None, f"not JSON ({error}): {text[:60]!r}"


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:160]


_DECIDERS = {
    "regex": _regex,
    "absent": _absent,
    "exact": _exact,
    "reasoning_exact": _reasoning_exact,
    "number": _number,
    "tool_calls": _tool_calls,
    "no_tool_call": _no_tool_call,
    "json_schema": _json_schema,
    "json_value": _json_value,
    "reasoning": _reasoning,
    "no_markup": _no_markup,
}
