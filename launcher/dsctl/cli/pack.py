"""`dsctl pack`: prepared experts, built once, checked, looked at, cleared away."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsctl.cli.output import Format, FormatOption, note
from dsctl.errors import ConfigError

if TYPE_CHECKING:
    from dsctl.engine.pack import PackReport

app = typer.Typer(help="Prepared experts: build once, verify, inspect, clear away old ones.")


class Correction(StrEnum):
    """How the correction from 2-bit back to FP4 is stored."""

    SPLIT = "split"
    PLAIN = "plain"
    NONE = "none"


_Checkpoint = Annotated[Path, typer.Option("--checkpoint", help="Directory of the checkpoint.")]
_Pack = Annotated[Path, typer.Argument(help="Directory of the pack (it holds pack.json).")]
_Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Default: all cores, at most 8.")
]


@app.command()
def build(
    checkpoint: _Checkpoint,
    out: Annotated[Path, typer.Option("--out", help="Directory to hold the pack.")],
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel ranks to split for.")] = 1,
    correction: Annotated[
        Correction,
        typer.Option("--correction", help="split: 7.5 MiB an expert; plain: 12; none: base only."),
    ] = Correction.SPLIT,
    draft: Annotated[bool, typer.Option("--draft", help="Also the draft model's experts.")] = False,
    threads: _Threads = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Make the pack of a checkpoint; killed or interrupted, run it again and it goes on."""
    args = ["build", "--checkpoint", str(checkpoint), "--out", str(out), "--tp", str(tp)]
    args += ["--correction", correction, *(["--draft"] if draft else []), *_threads(threads)]
    report = _run(args)
    if format_ is Format.JSON:
        _print(report)
        return
    from dsctl.progress import human_bytes

    body = report.body
    note("it was there already" if body["already_there"] else f"{human_bytes(body['size_bytes'])}")
    typer.echo(body["pack"])


@app.command()
def verify(
    pack: _Pack,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Check that many rows, not all.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Also: is the pack of this checkpoint?")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make bad rows again from --checkpoint.")
    ] = False,
    threads: _Threads = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Check rows against their checksums; names the bad ones (exit code 1)."""
    args = ["verify", str(pack), *_threads(threads)]
    args += ["--sample", str(sample)] if sample else []
    args += ["--checkpoint", str(checkpoint)] if checkpoint else []
    args += ["--repair"] if repair else []
    report = _run(args)
    if format_ is Format.JSON:
        _print(report)
    else:
        body = report.body
        for name in body["bad"]:
            fixed = " (made again)" if name in body["repaired"] else ""
            typer.echo(f"bad: {name}{fixed}")
        state = "good" if report.good else "not good"
        typer.echo(f"{state}: {body['checked']} of {body['rows']} rows checked")
        if not report.good:
            note("  what to do: run it with --repair --checkpoint DIR, or build the pack again")
    if not report.good:
        raise typer.Exit(1)


@app.command()
def inspect(pack: _Pack, format_: FormatOption = Format.TEXT) -> None:
    """Say what a pack is: model, ranks, correction, source, sizes."""
    report = _run(["inspect", str(pack)])
    if format_ is Format.JSON:
        _print(report)
        return
    from dsctl.progress import human_bytes

    body = report.body
    model = body["model"]
    layers = f"{len(model['layers'])} layers of {model['experts']} experts"
    typer.echo(f"model       {layers}, {model['hidden']} x {model['intermediate']}")
    typer.echo(f"ranks       {body['tensor_parallel']}")
    typer.echo(f"correction  {body['correction']}")
    typer.echo(f"source      {body['identity']} ({body['shards']} shards)")
    typer.echo(f"built       {body['built_at']} by {body['built_by']}, codec {body['codec']}")
    typer.echo(f"size        {human_bytes(body['size_bytes'])}")
    for file in body["files"]:
        slot = human_bytes(file["slot_bytes"])
        typer.echo(f"  {file['name']:<22} {human_bytes(file['size_bytes'])}, {slot} a row")


@app.command()
def prune(
    out: Annotated[Path, typer.Argument(help="Directory that holds packs.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Remove old generations and unfinished builds; asks first, leaves what is in use."""
    looked = _run(["prune", str(out), "--dry-run"])
    old = [entry for entry in looked.body["entries"] if entry["old"]]
    if format_ is Format.TEXT:
        _list_entries(looked.body["entries"])
    if old and not (dry_run or yes or sys.stdin.isatty()):
        raise ConfigError(
            f"{len(old)} old ones could go, and there is no terminal to ask",
            remedy="give --yes, or --dry-run to see them",
        )
    agreed = bool(old) and not dry_run and (yes or typer.confirm("remove the old ones?", err=True))
    report = _run(["prune", str(out), "--yes"]) if agreed else looked
    if format_ is Format.JSON:
        _print(report)
        return
    from dsctl.progress import human_bytes

    freed = report.body["freed_bytes"]
    typer.echo(f"freed {human_bytes(freed)}" if agreed else "nothing was removed")


def _list_entries(entries: list[dict[str, Any]]) -> None:
    from dsctl.progress import human_bytes

    for entry in entries:
        why = entry["old"] or ("in use" if entry["in_use"] else "current")
        state = "old " if entry["old"] else "keep"
        typer.echo(f"{state}  {entry['path']}  {human_bytes(entry['size_bytes'])}  ({why})")


def _threads(threads: int | None) -> list[str]:
    return ["--threads", str(threads)] if threads else []


def _run(args: list[str]) -> PackReport:
    from dsctl.background import Background
    from dsctl.cli.progress_view import ProgressView
    from dsctl.engine.pack import pack_program, run_pack
    from dsctl.paths import user_paths

    paths = user_paths()
    with ProgressView() as view:
        program, runtime = pack_program(paths, view.report)
        return run_pack(program, runtime, args, view.report, Background(paths.background))


def _print(report: PackReport) -> None:
    from dsctl.cli.output import print_json

    print_json(report.body)
