"""`dsctl unit`: a systemd unit for people who want the deployment at boot."""

from __future__ import annotations

from typing import Annotated

import typer

from dsctl.cli.output import note


def unit(
    profile: Annotated[str, typer.Option("--profile", "-p", help="What to run.")] = "auto",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one knob.")
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="`process` or `docker`.")] = None,
    metrics: Annotated[str | None, typer.Option("--metrics", metavar="WHERE")] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="USER", help="A unit of the system, run as that user."),
    ] = None,
) -> None:
    """Print a systemd unit that keeps this deployment up."""
    import os
    import re
    import sys
    from pathlib import Path

    from dsctl.cli.up import parse_overrides
    from dsctl.errors import ConfigError
    from dsctl.planning.catalog import load_profile
    from dsctl.supervise.background import arguments_of
    from dsctl.supervise.prepare import AUTO, Request, checked
    from dsctl.supervise.unit import unit_text

    if system is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", system):
        raise ConfigError(f"--system {system!r}: no user name", remedy="e.g. `--system dsctl`")
    request = checked(Request(profile, parse_overrides(set_ or []), engine, metrics=metrics))
    if request.profile != AUTO:  # now, and not at the next boot
        load_profile(request.profile, request.overrides)
    beside = Path(sys.executable).with_name("dsctl")
    program = [str(beside)] if beside.exists() else [sys.executable, "-P", "-m", "dsctl"]
    env = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("XDG_")}
    env = {name: value for name, value in env.items() if name.endswith("_HOME")}
    typer.echo(
        unit_text(
            program,
            arguments_of(request),
            title=f"dsctl: {profile}",
            docker=engine == "docker",
            user=system,
            env=env,
        ),
        nl=False,
    )
    where = "/etc/systemd/system" if system else "~/.config/systemd/user"
    flag = "" if system else " --user"
    note(f"\nput it into {where}/dsctl.service, then `systemctl{flag} enable --now dsctl`")
    if not system:
        note("to have it at boot without a login: `loginctl enable-linger`")
