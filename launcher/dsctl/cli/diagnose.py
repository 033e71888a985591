"""`dsctl diagnose`: names the cause in a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.model.diagnosis import Cause, Diagnosis, Evidence

_FileArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|-]...",
        help="Engine log, kernel log, `docker inspect` output, or a mix; `.gz` too; or a file "
        "that `dsctl bundle` wrote. "
        "`-`: standard input. Nothing: the log of the current deployment.",
        show_default=False,
    ),
]


def diagnose(files: _FileArgument = None, format_: FormatOption = Format.TEXT) -> None:
    """Name the cause of a failure in a log. Exit code 1 when no known cause is found."""
    from dsctl.diagnose.matcher import Matcher
    from dsctl.diagnose.reading import read_into

    diagnosis = _of_bundle(files or [])
    if diagnosis is None:
        matcher = Matcher()
        read_into(matcher, files or _deployment_log())
        diagnosis = matcher.result()
    if format_ is Format.JSON:
        print_json(diagnosis.to_json())
    else:
        _print(diagnosis)
    if not diagnosis.is_known:
        raise typer.Exit(1)


def _of_bundle(files: list[str]) -> Diagnosis | None:
    """The diagnosis of a bundle of `dsctl bundle`, where that is what is given."""
    if len(files) != 1 or not files[0].endswith((".tar.gz", ".tgz", ".tar")):
        return None
    from dsctl.errors import ConfigError
    from dsctl.supervise.bundle import diagnose_bundle, is_bundle

    if Path(files[0]).is_file() and not is_bundle(files[0]):
        raise ConfigError(
            f"{files[0]} is no bundle, or a damaged one",
            remedy="give what `dsctl bundle` wrote, whole; of another archive the log in it",
        )
    return diagnose_bundle(files[0])


def _deployment_log() -> list[str]:
    """The rotated and current log files of the deployment, oldest first."""
    from dsctl.engine.state import StateDirectory
    from dsctl.errors import ConfigError
    from dsctl.paths import user_paths
    from dsctl.supervise.logtail import log_parts

    log = StateDirectory(user_paths().deployment).log_file
    names = [str(path) for path in log_parts(log)]
    if not names:
        raise ConfigError(
            "no log is given and nothing was started here yet",
            remedy="`dsctl diagnose FILE`, or pipe one: `docker logs NAME 2>&1 | dsctl diagnose -`",
        )
    note(f"reading {names[-1]}")
    return names


def _print(diagnosis: Diagnosis) -> None:
    cause = diagnosis.cause
    name = cause.id if diagnosis.is_known else "unknown"
    colour = typer.colors.RED if diagnosis.is_known else typer.colors.YELLOW
    typer.echo(typer.style(cause.title, fg=colour, bold=True) + f"   [{name}]")
    if diagnosis.note:
        typer.echo(diagnosis.note)
    _say("what it means", cause.meaning)
    _show(cause.evidence)
    _say("what to do", cause.remedy)
    for number, other in enumerate(diagnosis.also):
        if not number:
            typer.echo("\nalso in this log:")
        _secondary(other)


def _say(head: str, text: str) -> None:
    import textwrap

    if text:
        typer.echo(f"\n{head}:")
        typer.echo(
            textwrap.fill(
                text, 98, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
            )
        )


def _show(evidence: tuple[Evidence, ...]) -> None:
    if evidence:
        typer.echo("\nwhere it shows:")
    for line in evidence:
        typer.echo(f"  {line.line:>8}  {line.text}")


def _secondary(cause: Cause) -> None:
    where = [f"line {cause.evidence[0].line}"] if cause.evidence else []
    where += [f"in start {cause.start}"] if cause.start else []
    typer.echo(f"  {cause.title}   [{cause.id}]" + (f" ({', '.join(where)})" if where else ""))
