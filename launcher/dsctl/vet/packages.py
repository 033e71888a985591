"""What is installed, from the lists that package managers leave behind. Pure over text."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterable, Mapping

from dsctl.vet.values import Package

_PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.endpoint_plugins")


def packages_of(
    texts: Mapping[str, str], libraries: Iterable[tuple[str, str]]
) -> tuple[Package, ...]:
    """All packages, from kept texts by path and libraries by (name, version)."""
    found: set[Package] = {
        Package(manager="file", name=name, version=version) for name, version in libraries
    }
    for path, text in texts.items():
        if path.startswith("var/lib/dpkg/"):
            found |= set(dpkg(text))
        elif path == "lib/apk/db/installed":
            found |= set(apk(text))
        elif path.endswith(".dist-info/METADATA"):
            found |= set(python(text))
        elif path.endswith("/version.json"):
            found |= set(cuda(text))
    return tuple(sorted(found, key=lambda p: (p.manager, p.name, p.version)))


def dpkg(text: str) -> Iterable[Package]:
    """Installed packages of a dpkg status file (a file of `status.d` has no Status line)."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", stanza, re.M))
        if "Package" in fields and fields.get("Status", " installed").endswith(" installed"):
            yield Package(
                manager="dpkg", name=fields["Package"], version=fields.get("Version", "?")
            )


def apk(text: str) -> Iterable[Package]:
    """Installed packages of Alpine's database."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(P|V):(.*)$", stanza, re.M))
        if "P" in fields:
            yield Package(manager="apk", name=fields["P"], version=fields.get("V", "?"))


def python(text: str) -> Iterable[Package]:
    """The distribution of a METADATA file."""
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    fields = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.M))
    if "Name" in fields:
        name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
        yield Package(manager="python", name=name, version=fields.get("Version", "?"))


def cuda(text: str) -> Iterable[Package]:
    """The toolkit's version file."""
    try:
        yield Package(manager="file", name="cuda", version=str(json.loads(text)["cuda"]["version"]))
    except (ValueError, KeyError, TypeError):
        return


def plugins_of(texts: Mapping[str, str]) -> tuple[str, ...]:
    """vLLM plugins among the entry points: they run in every process of the engine, unasked."""
    found = set()
    for path, text in texts.items():
        if not path.endswith(".dist-info/entry_points.txt"):
            continue
        parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for group in _PLUGIN_GROUPS:
            if parser.has_section(group):
                found |= {f"{group}: {name} = {target}" for name, target in parser.items(group)}
    return tuple(sorted(found))
