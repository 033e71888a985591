"""What vetting finds, as values with a JSON form: the image, the runs, the verdict."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from dsctl.model.base import Value
from dsctl.model.finding import Finding, Status

#: Version of the vet files; a file of another version is refused, not guessed at.
VET_SCHEMA = 1


class Mark(StrEnum):
    """Why a file is worth naming."""

    SETUID = "setuid"
    SETGID = "setgid"
    CAPABILITY = "capability"
    WORLD_WRITABLE = "world-writable"
    DEVICE = "device"
    RULE = "rule"  # a file rule of the policy; `detail` is its id


class MarkedFile(Value):
    """One file of the image. `layer` counts from 0, the base; `buried`: a later layer hides it."""

    path: str
    mark: Mark
    mode: int
    detail: str = ""
    layer: int = 0
    buried: bool = False


class Package(Value):
    """Something installed. `manager`: dpkg, apk, python, or file (told by a library's name)."""

    manager: str
    name: str
    version: str


class Layer(Value):
    """One layer: its size as the engine counts it, and the instruction that made it."""

    size_bytes: int
    made_by: str


class ImageFacts(Value):
    """The image as it lies there. Values of `env` that look like secrets are cut.

    `secrets`: by rule of the policy, names of variables (or `history`) in which one was seen.
    `plugins`: vLLM plugins that load into every process, as `group: name = target`.
    """

    asked: str
    image_id: str
    digests: tuple[str, ...]
    tags: tuple[str, ...]
    architecture: str
    size_bytes: int
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    working_dir: str
    env: dict[str, str]
    secrets: dict[str, tuple[str, ...]]
    ports: tuple[str, ...]
    volumes: tuple[str, ...]
    labels: dict[str, str]
    healthcheck: str
    layers: tuple[Layer, ...]
    packages: tuple[Package, ...]
    files: tuple[MarkedFile, ...]
    plugins: tuple[str, ...]

    @property
    def pinned(self) -> bool:
        """Whether it was asked for by content: `NAME@sha256:…`, or its own id."""
        return "@sha256:" in self.asked or self.asked.startswith("sha256:")

    def version_of(self, *names: str) -> str | None:
        """The version of the first of these packages that is there."""
        found = {p.name.lower(): p.version for p in self.packages}
        return next((found[n] for n in names if n in found), None)


class Attempt(Value):
    """One thing it tried to reach. `at_s`: seconds after its start, of the first try.

    `protocol`: dns, tcp, udp, icmp, ip-N. `name`: what was looked up, or whose address it was
    given. `said`: the type of a look-up, the name in a TLS greeting, an HTTP request, first bytes.
    """

    protocol: str
    address: str
    port: int | None = None
    name: str | None = None
    said: str = ""
    count: int = 1
    at_s: float


class Listener(Value):
    """A TCP port it listened on."""

    port: int
    family: int
    loopback: bool


class RunKind(StrEnum):
    """What was run."""

    ENTRYPOINT = "entrypoint"  # as the image says
    SERVE = "serve"  # the profile's command
    HELP = "help"
    FLAGS = "flags"  # the profile's flags, and one that nobody knows


class Run(Value):
    """One run in the trap. `exit_code` is None when it was still running at the end of the watch.

    `families`: the IP versions that the trap had proved to catch; `lost`: tries beyond the most
    that are told apart. `last_lines`: the end of what it printed.
    """

    kind: RunKind
    argv: tuple[str, ...]
    watched_s: float
    exit_code: int | None
    out_of_memory: bool = False
    attempts: tuple[Attempt, ...] = ()
    listeners: tuple[Listener, ...] = ()
    families: tuple[int, ...] = (4, 6)
    missing: dict[str, str] = Field(default_factory=dict)
    lost: int = 0
    last_lines: tuple[str, ...] = ()


class Parsed(StrEnum):
    """What the image's own parser said to the profile's flags."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNPROVEN = "unproven"


class FlagProof(Value):
    """The flags of a profile at the image's parser; `why` is one line of it."""

    outcome: Parsed
    flags: tuple[str, ...]
    refused: tuple[str, ...] = ()
    why: str = ""


class Vet(Value):
    """A verdict on one image under one policy. `seal` proves that nobody changed the file.

    `made_at`: UTC, ISO 8601. `policy_digest`: sha256 of the policy's content.
    `surroundings`: digest of the program and environment of the profile it was tried with.
    """

    schema_version: int = Field(default=VET_SCHEMA, alias="schema", serialization_alias="schema")
    image: str
    image_id: str
    digests: tuple[str, ...]
    verdict: Status
    findings: tuple[Finding, ...]
    profile: str | None
    surroundings: str | None
    flags: FlagProof | None
    policy_version: int
    policy_digest: str
    made_at: str
    made_by: str
    facts: ImageFacts
    runs: tuple[Run, ...]
    seal: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings that decided the verdict, one line each."""
        return tuple(f"{f.id}: {f.summary}" for f in self.findings if f.status is self.verdict)
