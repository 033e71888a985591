"""A good image, a quiet run and a vet of them, to be spoiled one thing at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsctl.model.finding import report
from dsctl.model.profile import Profile
from dsctl.paths import shipped
from dsctl.planning.catalog import read_profile
from dsctl.vet.judge import findings, flags_of
from dsctl.vet.parser import UNKNOWN, serve_argv, surroundings_digest
from dsctl.vet.policy import Policy, read_policy
from dsctl.vet.values import Attempt, ImageFacts, Layer, Package, Run, RunKind, Vet

POLICY = read_policy(Path(__file__).resolve().parents[3] / "hardening" / "vet-policy.yaml")
IMAGE_ID = "sha256:" + "a" * 64


def community() -> Profile:
    """The shipped external profile, its image named by content."""
    profile = read_profile(shipped("profiles", "dual96-community-image.yaml"))
    engine = profile.engine.model_copy(update={"image": IMAGE_ID})
    return profile.model_copy(update={"engine": engine})


def facts(**changed: Any) -> ImageFacts:
    good: dict[str, Any] = {
        "asked": IMAGE_ID,
        "image_id": IMAGE_ID,
        "digests": (),
        "tags": ("theirs/vllm:x",),
        "architecture": "linux/amd64",
        "size_bytes": 10 << 30,
        "user": "1000",
        "entrypoint": ("/opt/entry.sh",),
        "command": (),
        "working_dir": "/",
        "env": {"PATH": "/bin"},
        "secrets": {},
        "ports": (),
        "volumes": (),
        "labels": {},
        "healthcheck": "",
        "layers": (Layer(size_bytes=10 << 30, made_by="COPY . /"),),
        "packages": (Package(manager="python", name="vllm", version="0.32.0"),),
        "files": (),
        "plugins": (),
    }
    return ImageFacts(**good | changed)


def run(kind: RunKind = RunKind.ENTRYPOINT, **changed: Any) -> Run:
    good: dict[str, Any] = {"kind": kind, "argv": (), "watched_s": 60.0, "exit_code": None}
    return Run(**good | changed)


def parsed(argv: tuple[str, ...], *lines: str, exit_code: int | None = 2) -> Run:
    """A run of a command that ended with these lines."""
    return run(RunKind.FLAGS, argv=argv, exit_code=exit_code, last_lines=lines)


def all_known(profile: Profile) -> Run:
    argv = (*serve_argv(profile), UNKNOWN)
    return parsed(argv, f"vllm: error: unrecognized arguments: {UNKNOWN}")


def attempt(protocol: str, address: str, **more: Any) -> Attempt:
    return Attempt(protocol=protocol, address=address, at_s=more.pop("at_s", 1.0), **more)


def vet_of(
    image: ImageFacts, runs: tuple[Run, ...], profile: Profile, policy: Policy = POLICY
) -> Vet:
    found = report(None, findings(image, runs, policy, profile))
    return Vet(
        schema=1,
        image=image.asked,
        image_id=image.image_id,
        digests=image.digests,
        verdict=found.verdict,
        findings=found.findings,
        profile=profile.id,
        surroundings=surroundings_digest(profile),
        flags=flags_of(runs),
        policy_version=policy.version,
        policy_digest=policy.digest,
        made_at="2026-01-01T00:00:00+00:00",
        made_by="dsctl test",
        facts=image,
        runs=runs,
    )
