"""The known causes and contexts, read from the data files beside this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dsctl.diagnose.context import UNSEEN
from dsctl.diagnose.schema import CauseEntry, CauseFile, ContextFile
from dsctl.errors import ConfigError

_HERE = Path(__file__).parent
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Catalog:
    """All causes by id, and what gives a line its surrounding."""

    causes: dict[str, CauseEntry]
    contexts: ContextFile


@cache
def shipped_catalog() -> Catalog:
    """The causes that dsctl knows."""
    return load_catalog(sorted((_HERE / "causes").glob("*.yaml")), _HERE / "contexts.yaml")


def load_catalog(cause_files: Sequence[Path], context_file: Path) -> Catalog:
    """Read cause files and the context file, and check them against each other.

    Raises:
        ConfigError: names file, line and key.
    """
    contexts = _read(context_file, ContextFile)
    states = {group.name: {state.name for state in group.states} for group in contexts.groups}
    causes: dict[str, CauseEntry] = {}
    for path in cause_files:
        for number, cause in enumerate(_read(path, CauseFile).causes):
            at = ("causes", number)
            if cause.id in causes:
                raise _error(path, (*at, "id"), f"{cause.id} is given twice")
            for index, signature in enumerate(cause.signatures):
                for group, wanted in signature.context.items():
                    if unknown := set(wanted) - states.get(group, set()) - {UNSEEN}:
                        key = (*at, "signatures", index, "context", group)
                        raise _error(path, key, f"{sorted(unknown)} is not in {context_file.name}")
            causes[cause.id] = cause
    for path in cause_files:
        for number, cause in enumerate(_read(path, CauseFile).causes):
            named = {"explains": cause.explains, "confused_with": cause.confused_with}
            for field, others in named.items():
                if missing := set(others) - set(causes):
                    where = ("causes", number, field)
                    raise _error(path, where, f"{sorted(missing)} is not a cause")
    return Catalog(causes, contexts)


@cache
def _read(path: Path, model: type[_Model]) -> _Model:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: {error.problem or error.context}",
            remedy=f"correct line {line} of {path}",
        ) from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"]).removeprefix("Value error, ")
        raise _error(path, tuple(first["loc"]), message) from None


def _error(path: Path, at: tuple[str | int, ...], what: str) -> ConfigError:
    key = ".".join(str(part) for part in at)
    return ConfigError(
        f"{path}:{_line_of(path, at)}: key '{key}': {what}", remedy=f"correct it in {path}"
    )


def _line_of(path: Path, at: tuple[str | int, ...]) -> int:
    """The line of the deepest key of the path `at` that the file has."""
    node: Any = yaml.compose(path.read_text(encoding="utf-8"))
    line = 1
    for part in at:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
