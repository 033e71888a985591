"""Ask a running server everything in questions.yaml and print what came back.

    python -m canary.ask [--url http://127.0.0.1:8000] [--id ID]...

Needs only pyyaml. Ends with 0 when every answer is exactly the known one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

QUESTIONS = Path(__file__).parent / "questions.yaml"


def chat_request(question: dict[str, Any], model: str) -> dict[str, Any]:
    """The body of POST /v1/chat/completions for a question."""
    body = {
        "model": model,
        "messages": question["messages"],
        "max_tokens": question["max_tokens"],
        "temperature": 0.0,
        "chat_template_kwargs": {"thinking": question["kind"] == "thinking"},
    }
    return {**body, "tools": question["tools"]} if "tools" in question else body


def difference(question: dict[str, Any], message: dict[str, Any]) -> str | None:
    """What is wrong with the answer to a question; None if nothing is."""
    content = (message.get("content") or "").strip()
    if content != question["expected"].strip():
        return f"content {content!r} instead of {question['expected']!r}"
    reasoning = question.get("expected_reasoning")
    given = message.get("reasoning") or message.get("reasoning_content")
    if (given or "").strip() != (reasoning or ""):
        return f"reasoning {given!r} instead of {reasoning!r}"
    wanted = question.get("expected_tool_call")
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls") or []
    ]
    if calls != ([wanted] if wanted else []):
        return f"tool calls {calls} instead of {wanted}"
    return None


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def ask_chat(url: str, model: str, question: dict[str, Any]) -> str | None:
    """Ask one chat question; what is wrong with the answer, or None."""
    answer = _post(f"{url}/v1/chat/completions", chat_request(question, model))
    return difference(question, answer["choices"][0]["message"])


def ask_completion(url: str, model: str, raw: dict[str, Any]) -> str | None:
    """Ask one raw completion; what is wrong with the text, or None."""
    body = {"model": model, "prompt": raw["prompt"], "max_tokens": raw["max_tokens"]}
    text = _post(f"{url}/v1/completions", {**body, "temperature": 0.0})["choices"][0]["text"]
    return None if text == raw["expected"] else f"text {text!r} instead of {raw['expected']!r}"


def main() -> int:
    """Ask and print; 0 if all is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--id", action="append", help="ask only these")
    options = parser.parse_args()
    known = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{options.url}/v1/models", timeout=30) as response:
        model = json.load(response)["data"][0]["id"]
    asked: list[tuple[Callable[..., str | None], dict[str, Any]]] = [
        *((ask_chat, question) for question in known["questions"]),
        *((ask_completion, raw) for raw in known["completions"]),
    ]
    wrong = total = 0
    for how, question in asked:
        if options.id and question["id"] not in options.id:
            continue
        started = time.monotonic()
        problem = how(options.url, model, question)
        total, wrong = total + 1, wrong + (problem is not None)
        took = time.monotonic() - started
        print(f"{question['id']:<18}{took:7.2f} s  {problem or 'right'}", flush=True)
    print(f"\n{total - wrong} of {total} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
