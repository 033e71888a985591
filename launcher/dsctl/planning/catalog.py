"""Profiles by name: read from `profiles/*.yaml`, inherited one level, overridden, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsctl.errors import ConfigError
from dsctl.model.profile import PROFILE_SCHEMA, Knob, Profile, Source
from dsctl.paths import shipped, user_paths
from dsctl.planning.knobs import KNOBS, did_you_mean
from dsctl.planning.yamlfile import Document, explain, read_yaml

#: The user's overrides: profile names (or shell patterns of them) with knobs below.
USER_FILE = "profiles.yaml"

_MERGED = ("knobs", "env", "limits")


def profiles_directory() -> Path:
    """Where the shipped profiles lie."""
    return shipped("profiles")


def profile_names() -> list[str]:
    """Names of all shipped profiles."""
    return sorted(path.stem for path in profiles_directory().glob("*.yaml"))


def load_profile(
    name: str, overrides: Mapping[str, str] | None = None, user_file: Path | None = None
) -> Profile:
    """The resolved profile: `overrides` (texts of `--set`) beat the user's file beat the profile.

    `name` is a shipped profile's, or the path of a profile file. `user_file` defaults to
    `profiles.yaml` in the XDG configuration directory, which need not exist.

    Raises:
        ConfigError: unknown profile or key, a wrong type; names file, line and key.
    """
    profile = read_profile(_path_of(name))
    source = user_paths().config / USER_FILE if user_file is None else user_file
    if user_file is not None or source.is_file():
        profile = _with_user_file(profile, source)
    return _with_texts(profile, overrides or {})


def read_profile(path: Path) -> Profile:
    """The profile of one file, without the user's overrides.

    Raises:
        ConfigError: names file, line and key.
    """
    document = read_yaml(path)
    own = _mapping(document)
    values = own
    parent_name = own.get("extends")
    if parent_name is not None:
        values = _merged(_parent(document, path, parent_name), own)
    values = {**values, **{k: _without_nulls(values[k]) for k in _MERGED if k in values}}
    if own.get("id") != path.stem:
        raise document.error(
            ("id",), f"{own.get('id')!r} is not the file's name", f"write `id: {path.stem}`"
        )
    if values.get("schema") != PROFILE_SCHEMA:
        raise document.error(
            ("schema",),
            f"{values.get('schema')!r} is not a version this dsctl reads ({PROFILE_SCHEMA})",
            "update dsctl, or write the file for this version",
        )
    try:
        profile = Profile.model_validate(values)
    except ValidationError as error:
        raise explain(document, error) from None
    for key, knob in profile.knobs.items():
        _check(document, ("knobs", key), key, knob.value)
    for n, retry in enumerate(profile.retry):
        for value in retry.values:
            _check(document, ("retry", n, "knob"), retry.knob, value)
    return profile


def _path_of(name: str) -> Path:
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    names = profile_names()
    if name not in names:
        raise ConfigError(f"unknown profile '{name}'", remedy=did_you_mean(name, names))
    return profiles_directory() / f"{name}.yaml"


def _mapping(document: Document) -> dict[str, Any]:
    if not isinstance(document.values, dict):
        raise document.error((), "is not a mapping of keys", "see `dsctl profiles show cpu-canary`")
    return document.values


def _parent(document: Document, path: Path, name: Any) -> dict[str, Any]:
    beside = path.parent / f"{name}.yaml"
    source = beside if beside.is_file() else profiles_directory() / f"{name}.yaml"
    if not source.is_file():
        raise document.error(
            ("extends",), f"unknown profile {name!r}", did_you_mean(str(name), profile_names())
        )
    parent = _read_parent(source, source.stat().st_mtime_ns)
    if "extends" in parent:
        raise document.error(
            ("extends",),
            f"'{name}' extends '{parent['extends']}' itself; one level is all there is",
            f"extend '{parent['extends']}' and repeat what '{name}' changes",
        )
    return parent


@lru_cache(maxsize=8)
def _read_parent(source: Path, _modified_at_ns: int) -> dict[str, Any]:
    """A parent is read once for all its children, and again when it has changed."""
    return _mapping(read_yaml(source))


def _merged(parent: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The child's keys over the parent's; knobs, env and limits key by key."""
    merged = {**parent, **own}
    for section in _MERGED:
        below, above = parent.get(section, {}), own.get(section, {})
        if isinstance(below, dict) and isinstance(above, dict):
            merged[section] = {**below, **above}
    # Reports are about the very configuration they were measured on, never about a child of it.
    merged["measured"] = own.get("measured", [])
    return merged


def _without_nulls(section: Any) -> Any:
    """A key set to null is an inherited key taken away."""
    if not isinstance(section, dict):
        return section
    return {k: v for k, v in section.items() if v is not None}


def _check(document: Document, at: tuple[str | int, ...], key: str, value: Any) -> None:
    spec = KNOBS.get(key)
    if spec is None:
        raise document.error(at, "unknown knob", did_you_mean(key, KNOBS))
    try:
        spec.check(value)
    except ValueError as error:
        raise document.error(at, str(error)) from None


def _with_user_file(profile: Profile, path: Path) -> Profile:
    document = read_yaml(path)
    if document.values is None:
        return profile
    names = profile_names()
    for pattern, section in _mapping(document).items():
        if not any(fnmatchcase(name, pattern) for name in (*names, profile.id)):
            raise document.error((pattern,), "matches no profile", did_you_mean(pattern, names))
        if not isinstance(section, dict):
            raise document.error((pattern,), "is not a mapping of knobs", "e.g. `port: 8001`")
        for key, value in section.items():
            _check(document, (pattern, key), key, value)
        if fnmatchcase(profile.id, pattern):
            for key, value in section.items():
                profile = _set(profile, key, value, document.where((pattern, key)))
    return profile


def _with_texts(profile: Profile, overrides: Mapping[str, str]) -> Profile:
    for key, text in overrides.items():
        spec = KNOBS.get(key)
        if spec is None:
            raise ConfigError(f"--set {key}: unknown knob", remedy=did_you_mean(key, KNOBS))
        try:
            value = spec.parse(text)
        except ValueError as error:
            raise ConfigError(
                f"--set {key}: {error}", remedy=f"see `dsctl profiles show {profile.id}`"
            ) from None
        profile = _set(profile, key, value, "--set")
    return profile


def _set(profile: Profile, key: str, value: Any, where: str) -> Profile:
    knobs = {**profile.knobs, key: Knob(value=value, source=Source.USER, ref=where)}
    changes: dict[str, Any] = {"knobs": knobs}
    if key == "checkpoint":
        changes["model"] = profile.model.model_copy(update={"checkpoint": value})
    return profile.model_copy(update=changes)
