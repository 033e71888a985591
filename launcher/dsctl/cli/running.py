"""`dsctl status`, `dsctl down` and `dsctl logs`: the running deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from dsctl.model.deployment import DeploymentStatus
    from dsctl.paths import Paths


def status(format_: FormatOption = Format.TEXT) -> None:
    """What is running: phase, endpoint, memory. Exit code 1 when it is not ready."""
    from dsctl.paths import user_paths
    from dsctl.supervise.operate import status as status_now

    now = status_now(user_paths())
    if format_ is Format.JSON:
        print_json(now)
    else:
        _print_status(now)
    if not now.ready:
        raise typer.Exit(1)


def down(
    volumes: Annotated[
        bool, typer.Option("--volumes", help="Remove the volume of compilers' caches as well.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Stop the deployment: gracefully, then firmly; nothing of it is left running."""
    import time

    from dsctl.paths import user_paths
    from dsctl.supervise.operate import take_down

    paths = user_paths()
    stopped = take_down(paths, time.time)
    kept, removed = _volumes_of(paths, remove=volumes)
    if format_ is Format.JSON:
        profile = stopped.profile if stopped else None
        print_json({"stopped": profile, "kept": kept, "removed": removed})
        return
    note(f"stopped {stopped.profile}" if stopped else "nothing was running")
    for name in removed:
        note(f"removed volume {name}")
    for name in kept:
        note(f"kept volume {name}: what compilers made (`dsctl down --volumes` removes it)")


def _volumes_of(paths: Paths, *, remove: bool) -> tuple[list[str], list[str]]:
    """(kept, removed) volumes of a deployment in containers; none of one without."""
    from dsctl.engine.docker import DockerEngine
    from dsctl.engine.state import StateDirectory

    state = StateDirectory(paths.deployment)
    known = state.read()
    if known is None or known.engine != "docker":
        return [], []
    engine = DockerEngine(state)
    return ([], engine.purge()) if remove else (engine.kept(), [])


def logs(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")
    ] = None,
) -> None:
    """Print the engine's log."""
    from dsctl.engine.state import StateDirectory
    from dsctl.errors import NotGoodError
    from dsctl.paths import user_paths

    state = StateDirectory(user_paths().deployment)
    deployment = state.read()
    if deployment is None or not state.log_file.exists():
        raise NotGoodError(
            "there is no log: nothing was started yet",
            remedy="start with `dsctl up --profile cpu-canary`",
        )
    if follow:
        _follow(state, tail)
    else:
        _print_whole(state.log_file, tail)


def _print_whole(log: Path, tail: int | None) -> None:
    from collections import deque

    from dsctl.supervise.logtail import log_parts

    last: deque[str] | None = deque(maxlen=tail) if tail is not None else None
    for path in log_parts(log):
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                if last is not None:
                    last.append(text)
                else:
                    typer.echo(text, nl=False)
    for text in last or ():
        typer.echo(text, nl=False)


def _follow(state: object, tail: int | None) -> None:
    """Print new lines until the engine has ended or the user stops."""
    import time

    from dsctl.engine.select import engine_for
    from dsctl.engine.state import StateDirectory
    from dsctl.supervise.logtail import LogTail

    assert isinstance(state, StateDirectory)
    reader = LogTail(state.log_file)
    first = reader.drain()
    for text in first[-tail:] if tail else first if tail is None else ():
        typer.echo(text)
    while True:
        lines = reader.poll()
        for text in lines:
            typer.echo(text)
        if lines:
            continue
        deployment = state.read()
        if deployment is None or not engine_for(deployment.engine, state).is_alive(deployment):
            for text in reader.drain():
                typer.echo(text)
            note("(the engine has ended)")
            return
        time.sleep(0.2)


def _print_status(now: DeploymentStatus) -> None:
    import time

    from dsctl.model.event import Phase
    from dsctl.progress import human_bytes, human_seconds

    if now.profile is None:
        typer.echo("nothing was started yet; `dsctl up --profile cpu-canary` starts the canary")
        return
    since = f" for {human_seconds(time.time() - now.since)}" if now.since else ""
    typer.echo(f"{now.profile}: {now.phase}{since}")
    typer.echo(f"  engine    {now.engine}" + (f", pid {now.pid}" if now.pid else ""))
    if now.phase is not Phase.STOPPED:
        typer.echo(f"  endpoint  {now.endpoint}")
    typer.echo(f"  model     {now.model}")
    for name, amount in now.memory.items():
        shown = human_bytes(amount) if name.endswith("_bytes") else str(amount)
        typer.echo(f"  {name.removesuffix('_bytes'):<9} {shown}")
    if now.supervisor:
        typer.echo(f"  watched   by pid {now.supervisor}")
    if now.changes:
        typer.echo("  changed   " + ", ".join(f"{k}={v}" for k, v in now.changes.items()))
    if now.restarts:
        typer.echo(f"  restarts  {now.restarts}")
    if now.last_cause:
        typer.echo(f"  cause     {now.last_cause}   (`dsctl diagnose` explains it)")
    if now.reason:
        typer.echo(f"  reason    {now.reason}")
    if now.restart_at is not None:
        left = max(0.0, now.restart_at - time.time())
        typer.echo(f"  next      starts again in {human_seconds(left)}")
