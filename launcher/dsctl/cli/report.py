"""`dsctl report`: the validation report of runs and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    out: Annotated[Path, typer.Argument(help="OUT.html or OUT.md.")],
    run: Annotated[
        list[Path] | None, typer.Option("--run", help="Directory of a quality run.")
    ] = None,
    bench: Annotated[
        list[Path] | None, typer.Option("--bench", help="File of a benchmark.")
    ] = None,
    session: Annotated[
        list[Path] | None, typer.Option("--session", help="A grading session elsewhere.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="`dsctl plan --format json`, for the memory bar.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Also write the evidence, redacted, as .tar.gz."),
    ] = None,
) -> None:
    """Write one self-contained report; identifiers of the machine are left out."""
    from dsctl.report.make import make_report

    written = make_report(
        out, run or (), bench or (), sessions=session or (), plan=plan, bundle=bundle
    )
    for path in written:
        typer.echo(str(path))
