"""`dsctl facts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsctl.cli.output import note

_SysrootOption = Annotated[
    Path | None, typer.Option("--sysroot", metavar="DIR", help="Read a recorded host instead.")
]


def facts(
    sysroot: _SysrootOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there instead.")
    ] = None,
    measure: Annotated[
        list[Path] | None,
        typer.Option("--measure", metavar="FILE", help="Measure the read speed of FILE's disk."),
    ] = None,
    show_private: Annotated[
        bool,
        typer.Option("--show-private", help="Keep host, user and serial names (not for sharing)."),
    ] = False,
) -> None:
    """Print what this machine is, as JSON that every command reads back with `--facts`."""
    from dsctl.errors import ConfigError
    from dsctl.host.collect import collect
    from dsctl.host.redact import redact

    found = collect(sysroot, measure=tuple(measure or ()))
    if not show_private:
        found = redact(found)
    text = found.model_dump_json(indent=2)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n")
    except OSError as error:
        raise ConfigError(
            f"-o {output}: {error.strerror or error}", remedy="name a file that can be written"
        ) from None
    note(f"facts of {found.source} written to {output}")
