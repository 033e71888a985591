"""`dsctl audit`: whether a running deployment in containers keeps what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.audit.promise import AuditReport


def audit(
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Another engine container (Compose's)."),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option("--gateway", metavar="NAME", help="And its gateway's container.")
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", help="The address the API was told to be offered on.")
    ] = "127.0.0.1",
    format_: FormatOption = Format.TEXT,
) -> None:
    """Try to break every promise of the containers, from inside too. Exit code 1 if one breaks."""
    from dsctl.audit.run import audit as run_audit
    from dsctl.engine.docker import DockerEngine
    from dsctl.engine.docker_client import connect
    from dsctl.errors import ConfigError, NotGoodError
    from dsctl.keys import KeyFile
    from dsctl.paths import user_paths
    from dsctl.supervise.operate import running

    if gateway is not None and engine is None:
        raise ConfigError("--gateway needs --engine", remedy="name both containers")
    paths = user_paths()
    model = None
    if engine is None:
        deployment, kind = running(paths)
        if not isinstance(kind, DockerEngine):
            raise NotGoodError(
                f"{deployment.profile} runs as a process, which promises nothing of this",
                remedy="run it in containers: `dsctl up --engine docker`",
            )
        engine, gateway, model = kind.name("engine"), kind.name("gateway"), deployment.model
        bind = deployment.overrides.get("bind", bind)
    key = KeyFile(paths.api_keys).first()
    client = connect()
    try:
        report = run_audit(
            client, engine, gateway, key=key.secret if key else None, model=model, bind=bind
        )
    finally:
        client.close()
    if format_ is Format.JSON:
        print_json({"held": report.held, **report.model_dump(mode="json")})
    else:
        _print(report)
    if not report.held:
        raise typer.Exit(1)


def _print(report: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table

    words = {True: "held", False: "BROKEN", None: "not tried"}
    table = Table(box=None, pad_edge=False)
    for name in ("container", "promise", "how it was tried", "", "what was seen"):
        table.add_column(name, overflow="fold")
    for promise in report.promises:
        table.add_row(
            promise.container, promise.promise, promise.how, words[promise.held], promise.evidence
        )
    Console(highlight=False, markup=False).print(table)
    broken = report.broken
    if broken:
        note(f"\n{len(broken)} of {len(report.promises)} promises did not hold:")
        for promise in broken:
            note(f"  {promise.container}: {promise.promise}: {promise.evidence}")
    else:
        tried = sum(p.held is not None for p in report.promises)
        note(f"\nall {tried} promises that could be tried held")
