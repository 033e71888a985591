"""YAML with line numbers: a document as plain values, and the line of every key in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from dsctl.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError

KeyPath = tuple[str | int, ...]
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Document:
    """The values of a file and the line (from 1) of every key and list item, by its path."""

    path: Path
    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def where(self, at: KeyPath) -> str:
        """`FILE:LINE` of a key, or of the nearest enclosing one that the file has."""
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines.get(at, 1)}"

    def error(self, at: KeyPath, what: str, remedy: str | None = None) -> ConfigError:
        """An error about a key: names file, line and key."""
        key = ".".join(str(part) for part in at)
        return ConfigError(
            f"{self.where(at)}: key '{key}': {what}" if key else f"{self.where(at)}: {what}",
            remedy=remedy or f"correct it in {self.path}",
        )


def read_yaml(path: Path) -> Document:
    """Read one YAML document.

    Raises:
        ConfigError: unreadable, not YAML, a key given twice; names file and line.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} cannot be read: {reason}", remedy="check the path and its permissions"
        ) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        document = Document(path, None, lines)
        values = None if node is None else _plain(loader, node, (), document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: {error.problem or error.context}",
            remedy=f"correct line {line} of {path}",
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path}: not valid YAML: {str(error).splitlines()[0]}", remedy=f"correct {path}"
        ) from None
    finally:
        loader.dispose()
    return Document(path, values, lines)


#: No file of ours comes near it; an alias inside its own anchor passes it.
_DEEPEST = 32


def _plain(loader: Any, node: Any, at: KeyPath, document: Document) -> Any:
    document.lines.setdefault(at, node.start_mark.line + 1)
    if node.tag == _TEXT:  # most nodes are; a text is its own value
        return node.value
    if len(at) > _DEEPEST:
        raise document.error(
            at[:4], "refers to itself, or is nested far too deeply", "write it out"
        )
    if node.id == "mapping":
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = (
                key_node.value
                if key_node.tag == _TEXT
                else str(loader.construct_object(key_node, deep=True))
            )
            document.lines[(*at, key)] = key_node.start_mark.line + 1
            if key in values:
                raise document.error((*at, key), "given twice", "keep one of the two")
            values[key] = _plain(loader, value_node, (*at, key), document)
        return values
    if node.id == "sequence":
        return [_plain(loader, item, (*at, n), document) for n, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def explain(document: Document, error: ValidationError) -> ConfigError:
    """The first fault pydantic found, as one line that names file, line and key."""
    from dsctl.planning.knobs import did_you_mean

    # A mistyped key is unknown and makes another one missing: tell of the cause.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    at: KeyPath = tuple(first["loc"])
    if first["type"] == "extra_forbidden":
        siblings = _fields_beside(error, at)
        remedy = did_you_mean(str(at[-1]), siblings) if siblings else None
        return document.error(at, "unknown key", remedy)
    if first["type"] == "missing":
        return document.error(at, "is missing", f"add it to {document.path}")
    message = str(first["msg"]).removeprefix("Value error, ")
    return document.error(at, message[:1].lower() + message[1:])


def _fields_beside(error: ValidationError, at: KeyPath) -> list[str]:
    """Names that would have been known where `at` stands, read from the profile's schema."""
    from pydantic import BaseModel

    from dsctl.model.profile import Profile

    where: Any = Profile
    for part in at[:-1]:
        where = _step(where, part)
    if not (isinstance(where, type) and issubclass(where, BaseModel)):
        return []
    return [f.alias or n for n, f in where.model_fields.items()]


def _step(annotation: Any, part: str | int) -> Any:
    """The annotation one key deeper: through models, `dict[str, X]` and `tuple[X, ...]`."""
    from pydantic import BaseModel

    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return next((f.annotation for n, f in fields if part in (n, f.alias)), None)
    return None
