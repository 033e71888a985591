"""`dsctl up` and `dsctl restart`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note

if TYPE_CHECKING:
    from dsctl.engine.base import EngineCommand
    from dsctl.model.deployment import Deployment
    from dsctl.model.event import Event
    from dsctl.paths import Paths
    from dsctl.supervise.journal import Watcher
    from dsctl.supervise.notify import Notifier
    from dsctl.supervise.observer import Observer
    from dsctl.supervise.prepare import Prepared, Request
    from dsctl.supervise.shell import Shell

_ProfileOption = Annotated[str, typer.Option("--profile", "-p", help="What to run (or `auto`).")]
_SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one knob.")
]
_EngineOption = Annotated[
    str | None, typer.Option("--engine", help="`process` or `docker`; default: what fits.")
]
_DetachOption = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Supervise in the background: survives this terminal."),
]
_AttachOption = Annotated[
    bool,
    typer.Option(
        "--attach",
        "--foreground",
        help="Stay after ready and supervise from here; Ctrl-C leaves the engine running.",
    ),
]
_MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="WHERE",
        help="Serve the supervisor's gauges for Prometheus on `127.0.0.1:PORT` or `unix:PATH`.",
    ),
]
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check and print the exact command; start nothing.")
]
_TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="S", help="Give up after that many seconds.")
]
_IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ID", help="Turn a failed check into a warning."),
]


def up(
    profile: _ProfileOption,
    set_: _SetOption = None,
    engine: _EngineOption = None,
    detach: _DetachOption = False,
    attach: _AttachOption = False,
    metrics: _MetricsOption = None,
    dry_run: _DryRunOption = False,
    timeout: _TimeoutOption = None,
    ignore: _IgnoreOption = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Check, start, and supervise: here until the engine has given a right answer, then in the
    background, so that the shell is free."""
    from dsctl.errors import ConfigError
    from dsctl.supervise.prepare import Request, checked

    request = checked(
        Request(
            profile=profile,
            overrides=parse_overrides(set_ or []),
            engine=engine,
            timeout_s=timeout,
            ignore=tuple(ignore or ()),
            metrics=metrics,
        )
    )
    if attach and detach:
        raise ConfigError("--attach and --detach exclude each other", remedy="give one of them")
    if dry_run:
        _dry_run(request, format_)
    elif detach:
        run_detached(request, format_)
    else:
        run_attached(request, format_, stay=attach)


def restart(timeout: _TimeoutOption = None, format_: FormatOption = Format.TEXT) -> None:
    """Take the deployment down and start the same profile with the same overrides again."""
    import time

    from dsctl.engine.state import StateDirectory
    from dsctl.errors import NotGoodError
    from dsctl.paths import user_paths
    from dsctl.supervise.operate import take_down
    from dsctl.supervise.prepare import Request, checked, prepare

    paths = user_paths()
    known = StateDirectory(paths.deployment).read()
    if known is None:
        raise NotGoodError(
            "nothing was ever started here", remedy="start with `dsctl up --profile cpu-canary`"
        )
    named = known.requested or known.profile
    timeout_s = timeout if timeout is not None else known.timeout_s
    request = checked(
        Request(named, known.overrides, known.engine, timeout_s, known.ignore, known.metrics)
    )
    broken = [f for f in prepare(request, paths).report.failed if f.id.startswith("model.")]
    if broken:  # it could not start again: rather keep what runs
        raise NotGoodError(f"{broken[0].id}: {broken[0].summary}", remedy=broken[0].remedy)
    take_down(paths, time.time)
    run_attached(request, format_)


def parse_overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises:
        ConfigError: one of them has no `=`.
    """
    from dsctl.errors import ConfigError

    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE", remedy="e.g. `--set port=8001`")
        overrides[key.strip()] = value.strip()
    return overrides


def run_attached(request: Request, format_: Format, *, stay: bool = False) -> None:
    """Supervise the start in this process; with `stay` also what comes after it."""
    from dsctl.cli.event_view import event_view
    from dsctl.paths import user_paths
    from dsctl.supervise.notify import Notifier
    from dsctl.supervise.shell import real_shell
    from dsctl.supervise.start import bring_up

    paths, shell = user_paths(), real_shell()
    notifier = Notifier.of_environment() if stay else None
    with event_view(format_) as shown:

        def watcher(event: Event) -> None:
            if notifier is not None:
                notifier.event(event)
            shown(event)

        with _new_key_shown(paths, format_):
            deployment = bring_up(request, paths, shell, watcher, leave_supervisor=not stay)
        if stay:
            _stay(paths, shell, watcher, notifier)
            return
    if format_ is Format.TEXT:
        _say_what_next(str(deployment.endpoint), deployment.model)


def _stay(paths: Paths, shell: Shell, watcher: Watcher, notifier: Notifier | None) -> None:
    from dsctl.engine.state import StateDirectory
    from dsctl.errors import InterruptedByUserError
    from dsctl.supervise.presence import end_supervisor
    from dsctl.supervise.supervisor import supervise

    def tick(deployment: Deployment, observer: Observer | None) -> None:
        if notifier is not None:
            notifier.tick()

    end_supervisor(StateDirectory(paths.deployment))
    try:
        supervise(paths, shell, watcher, tick)
    except InterruptedByUserError:
        note("\n(no longer supervised from here; the engine runs on: `dsctl status`, `dsctl down`)")


def run_detached(request: Request, format_: Format) -> None:
    """Hand the start to a process of its own, show what it does, and leave it when it is done."""
    from dsctl.cli.event_view import event_view
    from dsctl.paths import user_paths
    from dsctl.supervise.background import follow_background

    paths = user_paths()
    with event_view(format_) as watcher, _new_key_shown(paths, format_):
        last = follow_background(request, paths, watcher)
    if format_ is Format.TEXT:
        _say_what_next(str(last.extra("endpoint")), str(last.extra("model")))


@contextmanager
def _new_key_shown(paths: Paths, format_: Format) -> Iterator[None]:
    """Shows the API key if it was made meanwhile: this once, and never in an event or a log.

    A start that fails shows it too: the next one finds it made and says nothing.
    """
    had_key = paths.api_keys.exists()
    try:
        yield
    finally:
        if format_ is Format.TEXT and not had_key and paths.api_keys.exists():
            from dsctl.keys import KeyFile

            key = KeyFile(paths.api_keys).first()
            if key is not None:
                note(f"\nAPI key {key.name!r}: {key.secret}")
                note(f"  (shown this once, kept in {paths.api_keys}; see `dsctl key --help`)")


def _say_what_next(endpoint: str, model: str) -> None:
    note(f"\nready: {endpoint} serves {model}")
    note("  ask it:    dsctl chat 'Who are you?'")
    note("  look:      dsctl status · dsctl logs -f")
    note("  stop it:   dsctl down")


def _dry_run(request: Request, format_: Format) -> None:
    from dsctl.cli.output import print_json
    from dsctl.errors import DsctlError
    from dsctl.model.finding import Status
    from dsctl.paths import user_paths
    from dsctl.supervise.prepare import prepare, refuse_what_does_not_fit
    from dsctl.supervise.selection import refuse_what_cannot_start

    paths = user_paths()
    prepared = prepare(request, paths)
    refuse_what_cannot_start(prepared.profile)
    command, missing = None, None
    try:
        command = _command(prepared, paths)
    except DsctlError as error:  # the findings say why, and come first
        missing = error
    if format_ is Format.JSON:
        print_json(
            {
                "profile": prepared.profile.id,
                "engine": prepared.engine,
                "preflight": prepared.report.model_dump(mode="json"),
                "plan": prepared.plan.model_dump(mode="json") if prepared.plan else None,
                "argv": list(command.argv) if command is not None else None,
                "env": command.env if command is not None else None,
            }
        )
    else:
        for finding in prepared.report.findings:
            if finding.status in (Status.FAIL, Status.WARN):
                note(f"{finding.status}: {finding.id}: {finding.summary}\n  {finding.remedy}")
        fits = prepared.plan.verdict if prepared.plan else "none"
        note(f"preflight: {prepared.report.verdict}; plan: {fits}; nothing was started.\n")
        if command is not None:
            _print_command(command)
    if prepared.plan is not None:
        refuse_what_does_not_fit(prepared.plan)
    if missing is not None:
        raise missing
    if prepared.report.verdict is Status.FAIL:
        raise typer.Exit(1)


def _command(prepared: Prepared, paths: Paths) -> EngineCommand:
    """What would be started; nothing is made for it."""
    if prepared.engine == "docker":
        from dsctl.engine.containers import container_command, named_images

        return container_command(
            prepared.profile,
            endpoint=prepared.endpoint,
            checkpoint=prepared.checkpoint,
            facts=prepared.facts,
            images=named_images(prepared.profile),
            paths=paths,
        )
    from dsctl.engine.environment import environment_for
    from dsctl.engine.lockfile import read_lock
    from dsctl.engine.runtime import runtime_directory
    from dsctl.engine.surroundings import process_command
    from dsctl.planning.cards import visible

    environment = environment_for(read_lock(prepared.profile.engine.environment), paths)
    return process_command(
        prepared.profile,
        endpoint=prepared.endpoint,
        checkpoint=prepared.checkpoint,
        environment=environment,
        runtime=runtime_directory(paths) if prepared.profile.engine.runtime else None,
        paths=paths,
        gpus=visible(prepared.profile.hardware, prepared.facts.gpus),
    )


def _print_command(command: EngineCommand) -> None:
    """As a shell command, or the Compose file of the containers."""
    import shlex

    if command.deck is not None:
        from dsctl.compose.render import render

        typer.echo(render(command.deck), nl=False)
        return
    for name, value in sorted(command.env.items()):
        typer.echo(f"{name}={shlex.quote(value)} \\")
    typer.echo(shlex.join(command.argv))
