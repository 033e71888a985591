"""One vetting from start to verdict; leaves no container behind, however it ends."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dsctl.errors import ConfigError
from dsctl.model.finding import report as gather
from dsctl.model.profile import Profile
from dsctl.paths import shipped
from dsctl.progress import Progress, Reporter
from dsctl.vet.daemon import engine, find
from dsctl.vet.judge import findings, flags_of
from dsctl.vet.observe import Bench, Trial, run_trial
from dsctl.vet.parser import (
    UNKNOWN,
    program_of,
    serve_argv,
    serve_env,
    start_argv,
    surroundings_digest,
)
from dsctl.vet.policy import Policy
from dsctl.vet.scan import scan
from dsctl.vet.values import ImageFacts, Run, RunKind, Vet

if TYPE_CHECKING:
    import docker

#: Asking for help starts an interpreter and imports the engine: a minute on a cold disk.
_PARSER_S = 300.0
_OWNER, _RUN = "dsctl.vet.owner", "dsctl.vet.run"


@dataclass(frozen=True)
class Wish:
    """What to vet and how. `trap_image` None: one of our own engine images."""

    image: str
    profile: Profile | None
    policy: Policy
    watch_s: float
    trap_image: str | None
    memory_bytes: int
    static_only: bool = False


def vet(wish: Wish, report: Reporter) -> Vet:
    """Read the image, run it in the trap, judge. Not sealed yet.

    Raises:
        ConfigError: no such image, no Docker engine, no image for the trap.
        DsctlError: Docker failed, or the trap does not work here.
    """
    from dsctl import __version__

    with engine("vetting an image") as client:
        sweep(client)
        known = find(client, wish.image)
        trap_image = None if wish.static_only else _trap_image(client, wish, known["Id"])
        facts = scan(client, wish.image, known, wish.policy, report)
        runs = _observed(client, wish, facts, trap_image, report) if trap_image else []
    found = gather(None, findings(facts, runs, wish.policy, wish.profile))
    return Vet(
        schema=1,
        image=wish.image,
        image_id=facts.image_id,
        digests=facts.digests,
        verdict=found.verdict,
        findings=found.findings,
        profile=wish.profile.id if wish.profile is not None else None,
        surroundings=surroundings_digest(wish.profile) if wish.profile is not None else None,
        flags=flags_of(runs),
        policy_version=wish.policy.version,
        policy_digest=wish.policy.digest,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"dsctl {__version__}",
        facts=facts,
        runs=tuple(runs),
    )


def trials(facts: ImageFacts, profile: Profile | None, watch_s: float) -> list[Trial]:
    """What is run of an image: as it is, and where it has an engine what the profile runs. Pure."""
    planned = [Trial(RunKind.ENTRYPOINT, watch_s)] if facts.entrypoint or facts.command else []
    program = program_of(profile)
    if profile is None and facts.version_of("vllm") is None:
        return planned
    env: dict[str, str | None] = serve_env(profile) if profile is not None else {}
    planned.append(Trial(RunKind.HELP, _PARSER_S, (*program, "--help"), env=env))
    if profile is not None:
        config = shipped(
            "profiles", "geometry", f"{profile.model.geometry}.config.json"
        ).read_bytes()
        argv = serve_argv(profile)
        planned.append(Trial(RunKind.FLAGS, _PARSER_S, (*argv, UNKNOWN), env=env, config=config))
        planned.append(Trial(RunKind.SERVE, watch_s, start_argv(profile), env=env, config=config))
    return planned


def _trap_image(client: docker.DockerClient, wish: Wish, image_id: str) -> str:
    """The image that the trap runs in, never the one that is vetted.

    Raises:
        ConfigError: there is none, or it is the very image.
    """
    if wish.trap_image is not None:
        found = str(find(client, wish.trap_image)["Id"])
    else:
        labelled = client.api.images(filters={"label": "dsctl.target"})
        ours = [i for i in labelled if i["Labels"].get("dsctl.target") in ("cpu", "cuda")]
        if not ours:
            raise ConfigError(
                "no image to run the trap in: it needs one of yours with Python 3",
                remedy="`dsctl image build --target cpu`, or name one with --trap-image",
            )
        found = str(max(ours, key=lambda i: i["Created"])["Id"])
    if found == image_id:
        raise ConfigError(
            f"{wish.image} cannot be watched by itself",
            remedy="name another image for the trap with --trap-image",
        )
    return found


def _observed(
    client: docker.DockerClient,
    wish: Wish,
    facts: ImageFacts,
    trap_image: str,
    report: Reporter,
) -> list[Run]:
    runs = []
    with _cleared(client) as labels:
        bench = Bench(client, trap_image, labels, wish.memory_bytes)
        for trial in trials(facts, wish.profile, wish.watch_s):
            what = _TELL[trial.kind]
            report(Progress(what))
            runs.append(run_trial(bench, facts.image_id, trial, _teller(what, trial, report)))
    return runs


_TELL = {
    RunKind.ENTRYPOINT: "watching what it does when started",
    RunKind.HELP: "asking it for help",
    RunKind.FLAGS: "asking its parser about the profile's flags",
    RunKind.SERVE: "watching the profile's command",
}


def _teller(what: str, trial: Trial, report: Reporter) -> Callable[[float], None]:
    if trial.kind in (RunKind.HELP, RunKind.FLAGS):
        return lambda watched: report(Progress(what))
    return lambda watched: report(
        Progress(what, watched, trial.watch_s, "s", left_s=trial.watch_s - watched)
    )


@contextmanager
def _cleared(client: docker.DockerClient) -> Iterator[dict[str, str]]:
    """Labels for everything that is made inside; it is removed at the end, Ctrl-C or not."""
    from dsctl.supervise.interrupts import uninterrupted

    run = secrets.token_hex(8)
    try:
        yield {_RUN: run, _OWNER: _identity(os.getpid())}
    finally:
        with uninterrupted():
            _remove(client, f"{_RUN}={run}")


def sweep(client: docker.DockerClient) -> None:
    """Remove what a vetting left that was killed outright."""
    for container in client.api.containers(all=True, filters={"label": _OWNER}):
        owner = container["Labels"][_OWNER]
        pid = owner.split(":")[1]
        if owner.split(":")[0] == _host() and owner != _identity(int(pid)):
            _force(client, container["Id"])


def _remove(client: docker.DockerClient, label: str) -> None:
    found: list[dict[str, Any]] = client.api.containers(all=True, filters={"label": label})
    for container in found:
        _force(client, container["Id"])


def _force(client: docker.DockerClient, container_id: str) -> None:
    from docker.errors import APIError, NotFound

    for _ in range(20):
        try:
            client.api.remove_container(container_id, force=True, v=True)
            return
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:  # its removal is already under way
                raise
            time.sleep(0.2)


def _host() -> str:
    from pathlib import Path

    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _identity(pid: int) -> str:
    """A process by boot, number and start: numbers alone are used again."""
    import psutil

    try:
        started = f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        started = "gone"
    return f"{_host()}:{pid}:{started}"
