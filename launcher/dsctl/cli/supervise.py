"""`dsctl supervise` (hidden): the supervisor that `dsctl up` leaves behind in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption

if TYPE_CHECKING:
    from dsctl.model.event import Event


def supervise(
    quiet: Annotated[bool, typer.Option("--quiet/--events", help="Print no events.")] = True,
    format_: FormatOption = Format.JSON,
) -> None:
    """Adopt the deployment of this user and watch it until it is down. `dsctl up` starts this."""
    from dsctl.cli.event_view import event_view
    from dsctl.errors import InterruptedByUserError
    from dsctl.paths import user_paths
    from dsctl.supervise.shell import real_shell
    from dsctl.supervise.supervisor import supervise as run

    try:
        if quiet:
            run(user_paths(), real_shell(), _nobody)
        else:
            with event_view(format_) as watcher:
                run(user_paths(), real_shell(), watcher)
    except InterruptedByUserError:
        raise typer.Exit(0) from None  # told to end: the engine runs on


def _nobody(event: Event) -> None:
    """The events file has it all."""
