"""`dsctl compose`: the Compose file of a profile, the same deployment that `up` starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import note

if TYPE_CHECKING:
    from dsctl.compose.spec import Deck
    from dsctl.model.profile import Profile


def compose(
    profile: Annotated[str, typer.Option("--profile", "-p", help="Of which profile.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one knob.")
    ] = None,
    resolve: Annotated[
        bool,
        typer.Option("--resolve", help="This machine's paths, images and cards, no variables."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")
    ] = None,
) -> None:
    """Print the Compose file: it works with plain Compose, without dsctl."""
    from dsctl.cli.up import parse_overrides
    from dsctl.compose.portable import portable_deck
    from dsctl.compose.render import render
    from dsctl.errors import ConfigError, NotGoodError
    from dsctl.files import write_atomically
    from dsctl.model.profile import Status
    from dsctl.planning.catalog import load_profile

    if profile == "auto":
        raise ConfigError(
            "--profile auto: a file is for one profile",
            remedy="`dsctl plan --profile auto` names the one for this machine",
        )
    chosen = load_profile(profile, parse_overrides(set_ or []))
    if chosen.status is Status.UNSUPPORTED:
        raise NotGoodError(
            f"profile {chosen.id} is unsupported: {chosen.status_reason}",
            remedy="choose another: `dsctl profiles list`",
        )
    text = render(_resolved(chosen) if resolve else portable_deck(chosen))
    if output is None:
        typer.echo(text, nl=False)
        return
    write_atomically(output, text)
    note(f"wrote {output}")


def _resolved(profile: Profile) -> Deck:
    from dsctl.engine.containers import container_command, guarded, named_images
    from dsctl.host.collect import collect
    from dsctl.paths import user_paths
    from dsctl.supervise.selection import checkpoint_of, endpoint_of

    paths = user_paths()
    command = container_command(
        profile,
        endpoint=guarded(endpoint_of(profile), profile, paths),
        checkpoint=checkpoint_of(profile),
        facts=collect(),
        images=named_images(profile),
        paths=paths,
    )
    assert command.deck is not None
    return command.deck
