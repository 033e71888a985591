"""Finds and reads suites: the shipped ones by name, a user's by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from dsctl.errors import ConfigError
from dsctl.files import read_text
from dsctl.quality.schema import Suite


def suite_names() -> tuple[str, ...]:
    """Names of the shipped suites; `smoke` is made from a deployment's own questions."""
    folder = resources.files("dsctl.quality") / "suites"
    names = (Path(entry.name) for entry in folder.iterdir())
    return (*sorted(name.stem for name in names if name.suffix == ".yaml"), "smoke")


def load_suite(name: str) -> Suite:
    """A shipped suite by name, or one from a file.

    Raises:
        ConfigError: there is none, or it is not a suite (names file and key).
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no suite file {path}", remedy="check the path")
        return parse_suite(read_text(path), str(path))
    source = resources.files("dsctl.quality") / "suites" / f"{name}.yaml"
    if not source.is_file():
        raise ConfigError(
            f"there is no suite {name!r}",
            remedy=f"choose one of {', '.join(suite_names())}, or give a path to a YAML file",
        )
    return parse_suite(source.read_text(encoding="utf-8"), f"{name}.yaml")


def parse_suite(text: str, where: str) -> Suite:
    """A suite from YAML text; `where` names it in errors.

    Raises:
        ConfigError: not YAML, or not a suite.
    """
    import yaml
    from pydantic import ValidationError

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{where} is not YAML: {problem}", remedy="mend the file") from None
    try:
        return Suite.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ConfigError(f"{where}, key {key}: {first['msg']}", remedy="mend the file") from None
