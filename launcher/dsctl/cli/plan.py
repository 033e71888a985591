"""`dsctl plan`: does it fit, where does every GiB go, what would make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption

if TYPE_CHECKING:
    from dsctl.model.plan import Plan
    from dsctl.planning.machine import Machine

_Profile = Annotated[str, typer.Option("--profile", "-p", help="A profile's name, or `auto`.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="What if: override a knob.")
]
_Facts = Annotated[
    Path | None,
    typer.Option("--facts", metavar="FILE", help="Plan for the machine of these facts."),
]
_Sysroot = Annotated[
    Path | None, typer.Option("--sysroot", metavar="DIR", help="Plan for a recorded machine.")
]
_Reference = Annotated[
    bool, typer.Option("--reference", help="Plan for the machine the profile is made for.")
]
_Max = Annotated[
    str | None,
    typer.Option(
        "--max", metavar="KNOB", help="Largest value that fits: pool, context, sequences."
    ),
]
_Chart = Annotated[
    Path | None, typer.Option("--chart", metavar="FILE", help="Draw the plan as .svg or .png.")
]
_Build = Annotated[bool, typer.Option("--first", help="A first start: the pack is not built yet.")]


def plan(
    profile: _Profile,
    set_: _Set = None,
    facts: _Facts = None,
    sysroot: _Sysroot = None,
    reference: _Reference = False,
    max_: _Max = None,
    chart: _Chart = None,
    first: _Build = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Whether a profile fits, before anything is started (exit code 1 when it does not).

    Without --facts, --sysroot or --reference: on this machine.
    """
    from dsctl.cli.up import parse_overrides

    overrides = parse_overrides(set_ or [])
    machine = None if reference else _machine(facts, sysroot, profile)
    if max_ is not None:
        _show_largest(profile, max_, machine, overrides, format_)
        return
    if profile == "auto":
        result = _choose(machine, overrides, format_)
    else:
        live = facts is None and sysroot is None
        result = _plan_one(profile, machine, overrides, first=first, live=live)
    if chart is not None:
        from dsctl.planning.chart import draw

        draw(result, chart)
    _print(result, format_)
    if not result.fits:
        raise typer.Exit(1)


def _machine(facts: Path | None, sysroot: Path | None, profile: str) -> Machine:
    """The machine, with the disk that the profile's checkpoint lies (or would lie) on."""
    from dsctl.errors import ConfigError
    from dsctl.host.collect import collect, read_facts
    from dsctl.planning.catalog import load_profile
    from dsctl.planning.machine import machine_from_facts

    path = None  # `auto` looks where every profile looks
    if profile != "auto":
        path = str(Path(load_profile(profile).model.checkpoint).expanduser().absolute())
    if facts is None:
        return machine_from_facts(collect(sysroot), path=path)
    try:
        text = facts.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--facts {facts}: {reason}", remedy="make it with `dsctl facts -o FILE`"
        ) from None
    return machine_from_facts(read_facts(text, str(facts)), path=path)


def _plan_one(
    name: str, machine: Machine | None, overrides: dict[str, str], *, first: bool, live: bool
) -> Plan:
    from dsctl.planning.catalog import load_profile
    from dsctl.planning.checkpoint import checkpoint_directory
    from dsctl.planning.plan import make_plan

    profile = load_profile(name, overrides)
    checkpoint = checkpoint_directory(profile)
    return make_plan(
        profile,
        machine,
        checkpoint=checkpoint,
        build="streamed" if first else "pack",
        have_checkpoint=checkpoint is not None if live else None,
        have_pack=False if first else None,
    )


def _choose(machine: Machine | None, overrides: dict[str, str], format_: Format) -> Plan:
    from dsctl.errors import ConfigError
    from dsctl.planning.choose import choose

    if machine is None:
        raise ConfigError(
            "--reference says nothing about which profile suits a machine",
            remedy="leave it away, or name a profile",
        )
    ranked = choose(machine, overrides)
    if format_ is Format.TEXT:
        typer.echo(f"auto: {ranked[0].profile.id} ({ranked[0].plan.quality})")
        for other in ranked[1:]:
            typer.echo(f"  not {other.profile.id}: {other.lost_because}")
        typer.echo("")
    best = ranked[0].plan
    others = {c.profile.id: c.lost_because for c in ranked[1:]}
    return best.model_copy(update={"inputs": {**best.inputs, "others": others}})


def _show_largest(
    name: str, knob: str, machine: Machine | None, overrides: dict[str, str], format_: Format
) -> None:
    from dsctl.cli.output import print_json
    from dsctl.planning.choose import largest

    found = largest(name, knob, machine, overrides)
    if format_ is Format.JSON:
        print_json({"knob": found.knob, "value": found.value, "binds": found.binds})
    else:
        typer.echo(f"{found.knob} = {found.value:,.6g} is the largest that fits")
        typer.echo(f"beyond it: {found.binds}")


def _print(result: Plan, format_: Format) -> None:
    if format_ is Format.JSON:
        from dsctl.cli.output import print_json

        print_json(result)
        return
    from rich.console import Console

    from dsctl.cli.plan_view import render

    Console(soft_wrap=True, highlight=False).print(render(result, title=result.profile))
