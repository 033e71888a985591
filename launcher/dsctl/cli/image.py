"""`dsctl image`: builds our images offline, lists them, says what they consist of."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.image_vet import vet
from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.image.names import ImageRef

app = typer.Typer(help="Container images: build ours without a network, judge somebody else's.")
app.command()(vet)


class Which(StrEnum):
    """The images there are."""

    CPU = "cpu"
    CUDA = "cuda"
    GATEWAY = "gateway"


_TARGET = Annotated[Which, typer.Option("--target", "-t", help="Which image.")]
_LOCKS = Annotated[
    Path | None, typer.Option("--locks", help="A directory of locks instead of the shipped ones.")
]


@app.command()
def build(
    target: _TARGET,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="IMAGE@DIGEST",
            help="Base image on this machine. Default: $DSCTL_IMAGE_BASE, debian:bookworm-slim.",
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option("--wheelhouse", help="Directory of what is fetched. Default: in your cache."),
    ] = None,
    fetch_only: Annotated[
        bool, typer.Option("--fetch-only", help="Only fetch: the one step that needs a network.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only build, from what the wheelhouse has.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Build even if the image is there, every step.")
    ] = False,
    locks: _LOCKS = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Fetch what the locks name, then build the image with the network off; prints its name."""
    from dsctl.cli.progress_view import ProgressView
    from dsctl.errors import ConfigError
    from dsctl.image.ensure import default_wheelhouse, ensure_image
    from dsctl.image.ensure import fetch_only as fetch
    from dsctl.paths import user_paths
    from dsctl.supervise.interrupts import interruptible

    if fetch_only and offline:
        raise ConfigError(
            "--fetch-only and --offline leave nothing to do", remedy="give one of them, or none"
        )
    if fetch_only:
        house = wheelhouse or default_wheelhouse(target.value, user_paths())
        with interruptible(), ProgressView() as view:
            fetch(target.value, house, view.report, locks)
        note(
            f"build it offline: dsctl image build --target {target} --offline --wheelhouse {house}"
        )
        return
    with interruptible(), ProgressView() as view:
        image = ensure_image(
            target.value,
            report=view.report,
            base=base,
            wheelhouse=wheelhouse,
            offline=offline,
            locks=locks,
            again=again,
        )
    if format_ is Format.JSON:
        print_json(image)
    else:
        typer.echo(image.tag)


@app.command("list")
def list_(format_: FormatOption = Format.TEXT) -> None:
    """The images built here: what is in them, and which are those of this dsctl."""
    from dsctl.image.ensure import list_images
    from dsctl.image.names import image_name

    images = list_images()
    current = {image_name(which.value) for which in Which}
    if format_ is Format.JSON:
        shown = [{**image.model_dump(), "current": image.tag in current} for image in images]
        print_json({"images": shown})
        return
    if not images:
        typer.echo("no image has been built here: dsctl image build --target cpu")
        return
    _print_table(images, current)


@app.command()
def sbom(
    target: _TARGET,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write it here instead of to stdout.")
    ] = None,
    locks: _LOCKS = None,
) -> None:
    """What an image consists of, as CycloneDX JSON; the image has it in /usr/share/dsctl, too."""
    from dsctl.files import write_atomically
    from dsctl.image.recipe import recipe
    from dsctl.image.sbom import sbom as bill

    text = bill(recipe(target.value, locks))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text)


def _print_table(images: list[ImageRef], current: set[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dsctl.image.names import LABEL
    from dsctl.progress import human_bytes

    table = Table(box=None, pad_edge=False)
    for heading in ("image", "built", "size", "vLLM", "runtime", "lock"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("built", "size"))
    for image in images:
        has = image.labels
        table.add_row(
            image.tag + (" *" if image.tag in current else ""),
            image.created[:16].replace("T", " "),
            human_bytes(image.size_bytes),
            has.get(f"{LABEL}vllm", "-"),
            has.get(f"{LABEL}runtime", "-"),
            has.get(f"{LABEL}digest.lock", has.get(f"{LABEL}digest.debian", ""))[:8],
        )
    Console().print(table)
    typer.echo("* what this dsctl runs; --format json has torch, kernels, base and every digest")
