"""`dsctl key`: who may ask through the gateway of a deployment in containers."""

from __future__ import annotations

from typing import Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

app = typer.Typer(help="API keys of the gateway: listed, added, removed while it serves.")

_Name = Annotated[str, typer.Argument(help="Whose key: letters, digits, '.', '_', '-'.")]


@app.command("list")
def list_keys(format_: FormatOption = Format.TEXT) -> None:
    """Names of the keys with the beginning of their digests; never the keys."""
    from dsctl.keys import KeyFile
    from dsctl.paths import user_paths

    file = KeyFile(user_paths().api_keys)
    keys = file.read()
    if format_ is Format.JSON:
        found: list[object] = [{"name": key.name, "sha256": key.digest} for key in keys]
        print_json({"file": str(file.path), "keys": found})
        return
    for key in keys:
        typer.echo(f"{key.name:<24} sha256 {key.digest[:12]}…")
    if not keys:
        note("there is no key yet; `dsctl up --engine docker` makes one, `dsctl key add NAME` too")
    else:
        note(f"(the keys themselves: {file.path})")


@app.command()
def add(
    name: _Name,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Take a key you have, one line on stdin.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Make a key and show it once; a running gateway takes it from the next request on."""
    import sys

    from dsctl.errors import ConfigError
    from dsctl.keys import KeyFile, checked_secret, publish
    from dsctl.paths import user_paths

    secret = None
    if stdin:
        secret = checked_secret(sys.stdin.read().removesuffix("\n"))
        if not secret:
            raise ConfigError("there is no key on stdin", remedy="echo it into `dsctl key add`")
    paths = user_paths()
    file = KeyFile(paths.api_keys)
    made = file.add(name, secret)
    publish(file.read(), paths.gateway_keys)
    if format_ is Format.JSON:
        print_json({"name": made.name, "key": made.secret})
        return
    typer.echo(made.secret)
    note(f"(key {made.name!r}, shown this once; it is kept in {file.path})")


@app.command()
def remove(name: _Name) -> None:
    """Remove a key: from the next request on it opens nothing."""
    from dsctl.keys import KeyFile, publish
    from dsctl.paths import user_paths

    paths = user_paths()
    file = KeyFile(paths.api_keys)
    file.remove(name)
    publish(file.read(), paths.gateway_keys)
    note(f"removed {name!r}")
