"""The image as it lies there: what the engine says about it, and what its layers hold."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, cast

from dsctl.progress import Progress, Rate, Reporter
from dsctl.vet.layers import Merged, merge, read_saved
from dsctl.vet.packages import packages_of, plugins_of
from dsctl.vet.policy import EnvRule, Policy
from dsctl.vet.values import ImageFacts, Layer

if TYPE_CHECKING:
    import docker

_CHUNK = 4 << 20
_LINE = 200
#: What stands for a secret wherever it would be printed or stored.
HIDDEN = "(hidden: a secret)"
#: The name under which a secret in a build instruction is listed.
HISTORY = "history"


def scan(
    client: docker.DockerClient,
    asked: str,
    known: Mapping[str, Any],
    policy: Policy,
    report: Reporter,
) -> ImageFacts:
    """Read an image through, without running it; `known` is the engine's inspection of it.

    Raises:
        DsctlError: it cannot be read.
    """
    total = int(known.get("Size") or 0)
    rate = Rate(time.monotonic)
    stream = Chunks(
        client.api.get_image(known["Id"], chunk_size=_CHUNK),
        lambda done: report(rate.update(f"reading {asked}", done, max(total, done), "bytes")),
    )
    report(Progress(f"Docker copies {asked} to be read"))  # says nothing until it has
    layers = read_saved(cast(IO[bytes], stream), policy.files)
    return image_facts(asked, known, client.api.history(known["Id"]), merge(layers), policy)


class Chunks:
    """Chunks of bytes as a file to read from; tells how far it is."""

    def __init__(self, chunks: Iterable[bytes], on_bytes: Callable[[int], None]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._left = b""
        self._done = 0
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer at the end."""
        parts, wanted = [], size
        while wanted and self._more():
            part = self._left if wanted < 0 else self._left[:wanted]
            self._left = self._left[len(part) :]
            parts.append(part)
            wanted -= len(part) if wanted > 0 else 0
        return b"".join(parts)

    def _more(self) -> bool:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._left = chunk
            self._done += len(chunk)
            self._on_bytes(self._done)
        return True


def image_facts(
    asked: str,
    known: Mapping[str, Any],
    history: Iterable[Mapping[str, Any]],
    content: Merged,
    policy: Policy,
) -> ImageFacts:
    """The facts of an image from the engine's answers and its content. Pure."""
    config = known.get("Config") or {}
    env = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    history = list(history)
    rules = [rule for rule in policy.env if rule.secret]
    made = [str(h.get("CreatedBy") or "") for h in reversed(history)]
    secrets = {rule.id: tuple(_holders(rule, env, made)) for rule in rules}
    hidden = {name for names in secrets.values() for name in names}
    layers = tuple(
        Layer(
            size_bytes=int(h.get("Size") or 0),
            made_by=HIDDEN if any(_tells(rule, text) for rule in rules) else _cut(text),
        )
        for h, text in zip(reversed(history), made, strict=True)
    )
    health = (config.get("Healthcheck") or {}).get("Test") or []
    return ImageFacts(
        asked=asked,
        image_id=known["Id"],
        digests=tuple(sorted(known.get("RepoDigests") or [])),
        tags=tuple(sorted(known.get("RepoTags") or [])),
        architecture=f"{known.get('Os', '?')}/{known.get('Architecture', '?')}",
        size_bytes=int(known.get("Size") or 0),
        user=str(config.get("User") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        working_dir=str(config.get("WorkingDir") or "/"),
        env={n: HIDDEN if n in hidden else v for n, v in sorted(env.items())},
        secrets={rule: names for rule, names in secrets.items() if names},
        ports=tuple(sorted(config.get("ExposedPorts") or {})),
        volumes=tuple(sorted(config.get("Volumes") or {})),
        labels=dict(sorted((config.get("Labels") or {}).items())),
        healthcheck=" ".join(map(str, health)),
        layers=layers,
        packages=packages_of(content.texts, content.libraries),
        files=tuple(sorted(content.files, key=lambda f: (f.mark, f.path, f.layer))),
        plugins=plugins_of(content.texts),
    )


def _holders(rule: EnvRule, env: Mapping[str, str], made: Iterable[str]) -> Iterator[str]:
    """Where the rule sees a secret: names of variables, `history` for a build instruction."""
    yield from (name for name, value in env.items() if _holds(rule, name, value))
    if any(_tells(rule, text) for text in made):
        yield HISTORY


def _holds(rule: EnvRule, name: str, value: str) -> bool:
    """Whether a variable holds a secret; an empty one does not."""
    return bool(value.strip()) and rule.matches(name, value)


def _tells(rule: EnvRule, instruction: str) -> bool:
    """Whether a build instruction tells one: `ARG HF_TOKEN=…` is kept for ever."""
    pairs = re.findall(r"([A-Za-z_][A-Za-z0-9_]*)=[\"']?([^\s\"']+)", instruction)
    return any(_holds(rule, name, value) for name, value in pairs)


def _cut(text: str) -> str:
    return " ".join(text.split())[:_LINE]
