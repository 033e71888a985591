"""Questions whose right answer is known: what "ready" is measured by."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from dsctl.errors import ConfigError
from dsctl.model.base import Regex, Value


class ToolCall(Value):
    """The tool call that must come out."""

    name: str
    arguments: dict[str, Any]


class Question(Value):
    """A chat request and what must come back.

    A model that knows an answer by heart gives `expected` exactly (and `expected_reasoning`); of
    another, `expected_match` is a regular expression that its answer must hold. `free`: any text
    will do that a person could have written; it is judged for sanity alone.
    """

    id: str
    kind: Literal["plain", "thinking", "tool", "free"]
    messages: tuple[dict[str, Any], ...]
    expected: str = ""
    expected_match: Regex | None = None
    expected_reasoning: str | None = None
    expected_tool_call: ToolCall | None = None
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int = 256

    def fits(self, text: str) -> bool:
        """Whether an answer is the right one."""
        if self.kind == "free":
            return True
        if self.expected_match is not None:
            return re.search(self.expected_match, text) is not None
        return text.strip() == self.expected.strip()

    @property
    def wanted(self) -> str:
        """What should have come, for people."""
        if self.expected_match is not None:
            return f"something with /{self.expected_match}/"
        return repr(self.expected)


def read_questions(path: Path) -> tuple[Question, ...]:
    """All questions of a file.

    Raises:
        ConfigError: missing, not YAML, or a question with a missing or unknown key (named).
    """
    import yaml
    from pydantic import ValidationError

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"questions {path} cannot be read: {error.strerror}",
            remedy="check `questions` of the profile",
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", remedy="mend the file") from None
    entries = document.get("questions") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: no questions", remedy="give it a list of questions")
    found = []
    for number, entry in enumerate(entries, start=1):
        try:
            found.append(Question.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{path}: question {number}, key {key!r}: {first['msg']}", remedy="mend the file"
            ) from None
    return tuple(found)
