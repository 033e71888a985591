"""A log line without what carried it: colours, Docker's JSON, timestamps of journald and CRI."""

from __future__ import annotations

import json
import re

#: A longer line is cut to this many characters around what made it interesting.
LONGEST_LINE = 8192
#: Evidence is shown up to this many characters.
LONGEST_EVIDENCE = 400

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ISO = r"\d{4}-\d\d-\d\d[T\x20]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CARRIERS = re.compile(
    r"""(?x)
    ^\s*(?:
        [\w.-]{1,64}\s+\|\s                                    # docker compose: `engine-1  | `
      | (?:"""
    + _ISO
    + r"""\s|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s)
        (?!DEBUG|INFO|WARN|ERROR|CRITICAL)[\w.-]+\s
        (?:kernel:\s|(?=[\w@.\\()-]+(?:\[\d+\])?:\s))         # journald, syslog (keeps who)
      | """
    + _ISO
    + r"""\s(?:(?:stdout|stderr)\s[FP]\s)?                      # docker logs -t, CRI
      | (?:kern|user|daemon)\s{0,2}:\w+\s*:\s                     # dmesg -x
      | <\d{1,3}>(?=\[)                                        # dmesg --raw
      | \[\s*\d+\.\d+\]\s                                      # dmesg
      | \[[A-Z][a-z]{2}\s[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\d{4}\]\s   # dmesg -T
    )"""
)
#: From here on a line repeats what a user wrote or the model said.
_QUOTED = re.compile(
    r"(?:Received request [^:]{0,200}: prompt: |Generated response [^:]{0,200}: output: "
    r"|[\"']?prompt[\"']?\s*[:=]\s*[\"']|[\"']content[\"']\s*:\s*[\"'])"
)
#: Without one of these nothing is quoted.
_MARKS = re.compile(b"prompt|output: |content")
_MOST_CARRIERS = 4


def clean_line(text: str) -> str:
    """The message of a line: what the program itself wrote, without what users wrote.

    Numbers, paths and the program's own prefixes (`(EngineCore pid=7) ERROR …`) stay.
    """
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _unwrapped(text)
    for _ in range(0 if text.startswith("(") else _MOST_CARRIERS):
        match = _CARRIERS.match(text)
        if match is None:
            break
        text = text[match.end() :]
        if text.startswith("{"):
            text = _unwrapped(text)
    if "prompt" not in text and "output: " not in text and "content" not in text:
        return text
    quoted = _QUOTED.search(text)
    return text[: quoted.start()] if quoted else text


def may_be_quoted(head: bytes) -> bool:
    """Whether what follows `head` in a raw line may be what a user wrote or the model said."""
    return _MARKS.search(head) is not None


def _unwrapped(text: str) -> str:
    """The text inside Docker's json-file or journald's JSON line, or the line itself."""
    stripped = text.lstrip()
    if not stripped.startswith("{") or ('"log"' not in stripped and '"MESSAGE"' not in stripped):
        return text
    try:
        record = json.loads(stripped)
    except ValueError:
        return text
    message = record.get("log", record.get("MESSAGE"))
    if not isinstance(message, str):
        return text
    message = message.rstrip("\r\n")
    return _ANSI.sub("", message) if "\x1b" in message else message


def cut_around(text: str, start: int, longest: int) -> str:
    """`text`, or `longest` characters of it from a little before `start`, marked as cut."""
    if len(text) <= longest:
        return text
    first = max(0, min(start - longest // 4, len(text) - longest))
    head = "…" if first else ""
    tail = "…" if first + longest < len(text) else ""
    return head + text[first : first + longest] + tail
