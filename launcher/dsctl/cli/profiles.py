"""`dsctl profiles`: list them, show one resolved, prove their flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption

if TYPE_CHECKING:
    from dsctl.engine.base import EngineCommand
    from dsctl.model.profile import Knob, Profile

app = typer.Typer(help="Profiles: what runs on which hardware, and where each number comes from.")

_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one knob.")
]


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_(Format.TEXT)


@app.command("list")
def list_(format_: FormatOption = Format.TEXT) -> None:
    """All profiles: how far dsctl stands behind each, what was run, whether `up` starts it."""
    from dsctl.planning.catalog import load_profile, profile_names
    from dsctl.planning.startable import lack_of

    profiles = [load_profile(name) for name in profile_names()]
    lacks = {p.id: lack_of(p) for p in profiles}
    if format_ is Format.JSON:
        from dsctl.cli.output import print_json

        keys = {"id", "title", "status", "status_reason", "verified", "verified_how", "hardware"}
        print_json(
            [
                {
                    **p.model_dump(mode="json", include=keys),
                    "starts": lacks[p.id] is None,
                    "why_not": lack.why if (lack := lacks[p.id]) else "",
                }
                for p in profiles
            ]
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("profile", "status", "verified", "dsctl up", "what it is"):
        table.add_column(name, no_wrap=name != "what it is")
    for p in profiles:
        lack = lacks[p.id]
        starts = "starts it" if lack is None else lack.short
        table.add_row(p.id, str(p.status), str(p.verified), starts, p.title)
    Console(highlight=False).print(table)
    typer.echo("\n`dsctl plan`, `preflight` and `profiles show` work for all of them.")


@app.command()
def show(name: str, set_: _Set = None, format_: FormatOption = Format.TEXT) -> None:
    """A profile resolved: every value with its source, and the exact command and environment."""
    from dsctl.cli.up import parse_overrides
    from dsctl.engine.command import engine_command
    from dsctl.model.endpoint import Endpoint
    from dsctl.planning.catalog import load_profile

    profile = load_profile(name, parse_overrides(set_ or []))
    command = engine_command(
        profile,
        endpoint=Endpoint(port=profile.value("port", 8000)),
        checkpoint=Path(profile.model.checkpoint),
    )
    if format_ is Format.JSON:
        from dsctl.cli.output import print_json

        resolved = profile.model_dump(mode="json", by_alias=True)
        print_json({**resolved, "argv": list(command.argv), "command_env": command.env})
        return
    _print_profile(profile)
    _print_command(command)


@app.command()
def validate(
    file: Annotated[
        str | None, typer.Argument(help="A profile's name or file; default: all.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", metavar="DIR", help="Unpacked CUDA build of the engine to ask."),
    ] = None,
    schema_only: Annotated[
        bool, typer.Option("--schema-only", help="Check the files; do not ask the engine.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Prove the flags: the pinned engine's own parser and configuration code resolve them."""
    from dsctl.cli.progress_view import ProgressView
    from dsctl.planning.catalog import load_profile, profile_names
    from dsctl.planning.validate import Proof, prove

    profiles = [load_profile(name) for name in ([file] if file else profile_names())]
    if schema_only:
        proofs = [Proof(profile=p.id, outcome="skip", summary="schema only") for p in profiles]
    else:
        with ProgressView() as view:
            proofs = prove(profiles, wheel=wheel, report=view.report)
    if format_ is Format.JSON:
        from dsctl.cli.output import print_json

        print_json({"profiles": [p.model_dump(mode="json") for p in proofs]})
    else:
        for proof in proofs:
            typer.echo(f"{proof.outcome:<5} {proof.profile}: {proof.summary}")
            for line in proof.faults:
                typer.echo(f"      - {line}")
    if any(proof.outcome == "fail" for proof in proofs):
        raise typer.Exit(1)


def _print_profile(profile: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    from dsctl.planning.startable import lack_of

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{profile.id}: {profile.title}", style="bold")
    console.print(profile.summary)
    console.print(f"status: {profile.status}; verified: {profile.verified}")
    for text in (profile.status_reason, profile.verified_how):
        if text:
            console.print(f"  {text}")
    lack = lack_of(profile)
    console.print(f"dsctl up: {'starts it' if lack is None else f'refuses it: {lack.why}'}")
    for line in profile.evidence:
        console.print(f"  - {line}")
    for heading, section in (("knobs", profile.knobs), ("environment", profile.env)):
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in (heading, "value", "source", "why"):
            table.add_column(name, no_wrap=name in (heading, "source"))
        for key, knob in section.items():
            table.add_row(key, _value(knob), _source(knob), knob.why)
        console.print("")
        Console(highlight=False).print(table)
    for report in profile.measured:
        span = f"{report.low:g}" if report.low == report.high else f"{report.low:g}-{report.high:g}"
        console.print(f"reported: {report.what} {span} {report.unit} ({report.conditions})")


def _value(knob: Knob) -> str:
    import json

    return knob.value if isinstance(knob.value, str) else json.dumps(knob.value)


def _source(knob: Knob) -> str:
    return f"{knob.source} ({knob.ref})" if knob.ref else str(knob.source)


def _print_command(command: EngineCommand) -> None:
    import shlex

    typer.echo("\ncommand:")
    for name, value in command.env.items():
        typer.echo(f"  {name}={shlex.quote(value)} \\")
    typer.echo(f"  {shlex.join(command.argv)}")
