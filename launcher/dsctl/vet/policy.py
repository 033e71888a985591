"""The policy: what makes an image good, doubtful or bad, as data (`hardening/vet-policy.yaml`)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from dsctl.errors import ConfigError
from dsctl.model.base import Value
from dsctl.model.finding import Status
from dsctl.paths import Paths, shipped

#: Everything that is judged in code; the policy gives each of these its weight.
JUDGED = (
    "image.pinned",
    "image.user",
    "image.ports",
    "image.volumes",
    "files.setuid",
    "files.capability",
    "files.world-writable",
    "files.device",
    "packages.engine",
    "packages.plugins",
    "egress.names",
    "egress.connections",
    "egress.multicast",
    "egress.uncaught",
    "run.entrypoint",
    "run.serve",
    "parser.help",
    "parser.flags-refused",
    "parser.flags-unproven",
)


def _is_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


Regex = Annotated[str, AfterValidator(_is_regex)]


class Weight(Value):
    """How bad something is, why it matters, and what to do about it."""

    verdict: Literal["pass", "warn", "fail"]
    why: str
    remedy: str = ""

    @model_validator(mode="after")
    def _bad_news_has_a_remedy(self) -> Weight:
        if self.verdict != "pass" and not self.remedy:
            raise ValueError(f"verdict '{self.verdict}' needs a 'remedy'")
        return self

    @property
    def status(self) -> Status:
        """The verdict as a finding's status."""
        return Status(self.verdict)


class EnvRule(Weight):
    """Variables by name, or by what is in them. A profile that sets or unsets one settles it."""

    id: str
    names: Regex | None = None
    values: Regex | None = None
    secret: bool = False

    def matches(self, name: str, value: str) -> bool:
        """Whether the rule speaks of this variable."""
        named = self.names is None or re.search(self.names, name) is not None
        valued = self.values is None or re.search(self.values, value) is not None
        return named and valued

    @model_validator(mode="after")
    def _says_what(self) -> EnvRule:
        if self.names is None and self.values is None:
            raise ValueError("needs 'names' or 'values'")
        return self


class FileRule(Weight):
    """Files by path (no leading slash), and where it matters by what is in them.

    `hidden`: also those that a later layer hides, for they are there for whoever unpacks the image.
    """

    id: str
    paths: Regex
    content: Regex | None = None
    hidden: bool = False


class Policy(Value):
    """The whole policy."""

    schema_version: Literal[1] = Field(alias="schema")
    version: int = Field(ge=1)
    weights: dict[str, Weight]
    env: tuple[EnvRule, ...]
    files: tuple[FileRule, ...]
    usual_setuid: tuple[Regex, ...]
    usual_writable: tuple[Regex, ...]
    usual_devices: tuple[Regex, ...]
    usual_plugins: tuple[Regex, ...]
    allowed_egress: tuple[Regex, ...] = ()

    @model_validator(mode="after")
    def _weighs_everything_once(self) -> Policy:
        missing = [name for name in JUDGED if name not in self.weights]
        if missing:
            raise ValueError(f"'weights' lacks {', '.join(missing)}")
        strange = [name for name in self.weights if name not in JUDGED]
        if strange:
            raise ValueError(f"'weights' has {strange[0]}, which nothing judges")
        ids = [*(rule.id for rule in self.env), *(rule.id for rule in self.files)]
        twice = next((one for one in ids if ids.count(one) > 1), None)
        if twice:
            raise ValueError(f"two rules are called {twice}")
        return self

    @property
    def digest(self) -> str:
        """sha256 of the content; comments and layout do not count."""
        return "sha256:" + hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def policy_file(paths: Paths) -> Path:
    """The policy in force: the user's own, else the shipped one."""
    own = paths.config / "vet-policy.yaml"
    return own if own.exists() else shipped("hardening", "vet-policy.yaml")


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        ConfigError: names file, line and key.
    """
    from dsctl.planning.yamlfile import explain, read_yaml

    document = read_yaml(path)
    if not isinstance(document.values, dict):
        raise ConfigError(f"{path}:1: not a policy: no keys", remedy=f"correct {path}")
    try:
        return Policy.model_validate(document.values)
    except ValidationError as error:
        raise explain(document, error) from None
