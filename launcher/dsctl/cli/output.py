"""What commands share when they print: the `--format` option, and JSON alone on stdout."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


class Format(StrEnum):
    """How a command that reports prints."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="How to print the report.")]


def print_json(value: BaseModel | dict[str, object] | list[object]) -> None:
    """Print one JSON document on stdout."""
    import json

    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        sys.stdout.write(value.model_dump_json(indent=2) + "\n")
    else:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Progress and remarks for people: on stderr, so that stdout stays clean."""
    print(text, file=sys.stderr, flush=True)
