"""`dsctl bundle`: everything about the deployment in one redacted file."""

from __future__ import annotations

from typing import Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json


def bundle(
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="FILE", help="Default: dsctl-bundle-TIME.tar.gz here."),
    ] = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Write state, events, logs, samples, facts, profile, plan and diagnosis into one file, without
    secrets and without what names a person or machine. `dsctl diagnose FILE` reads it again."""
    import time
    from pathlib import Path

    from dsctl.engine.state import StateDirectory
    from dsctl.paths import user_paths
    from dsctl.supervise.bundle import make_bundle

    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    path = Path(out) if out else Path(f"dsctl-bundle-{stamp}.tar.gz")
    sizes = make_bundle(StateDirectory(user_paths().deployment), path, now)
    if format_ is Format.JSON:
        print_json({"file": str(path), "members": dict(sizes)})
        return
    for name, size in sizes.items():
        typer.echo(f"  {size:>10,}  {name}")
    typer.echo(f"{path}: look it over before you attach it to a report")
    note("`dsctl diagnose FILE` reads it again, anywhere")
