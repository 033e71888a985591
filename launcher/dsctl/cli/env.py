"""`dsctl env`: the engine's environment, made ahead of a start or brought to a machine offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsctl.cli.output import note

app = typer.Typer(
    help="The engine's environment: make it ahead of a start, or fetch it for a machine offline."
)

_NAME = Annotated[str, typer.Option("--lock", help="Which environment.")]


@app.command()
def build(lock: _NAME = "cpu") -> None:
    """Make the environment now, as the first `dsctl up` would; prints its directory."""
    from dsctl.cli.progress_view import ProgressView
    from dsctl.engine.environment import ensure_environment
    from dsctl.engine.lockfile import read_lock
    from dsctl.paths import user_paths

    with ProgressView() as view:
        environment = ensure_environment(read_lock(lock), user_paths(), view.report)
    typer.echo(environment.directory)


@app.command()
def fetch(
    to: Annotated[Path, typer.Option("--to", help="Directory to fill with wheels.")],
    lock: _NAME = "cpu",
) -> None:
    """Fill a directory with every wheel of the environment, to be carried to another machine."""
    from dsctl.cli.progress_view import ProgressView
    from dsctl.engine.lockfile import read_lock
    from dsctl.engine.pip_errors import WHEELHOUSE_VARIABLE
    from dsctl.engine.wheelhouse import fetch_wheels

    with ProgressView() as view:
        fetch_wheels(read_lock(lock), to, view.report)
    note(f"bring {to} to the other machine and run there: {WHEELHOUSE_VARIABLE}={to} dsctl up …")


@app.command()
def path(lock: _NAME = "cpu") -> None:
    """Print where the environment lies (exit code 1 when it is not made yet)."""
    from dsctl.engine.environment import environment_for
    from dsctl.engine.lockfile import read_lock
    from dsctl.paths import user_paths

    environment = environment_for(read_lock(lock), user_paths())
    typer.echo(environment.directory)
    if not environment.is_ready():
        note(f"not made yet: `dsctl env build --lock {lock}` makes it")
        raise typer.Exit(1)
