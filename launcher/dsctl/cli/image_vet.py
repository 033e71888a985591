"""`dsctl image vet`: judges somebody else's image before `dsctl up` may start it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.model.profile import Profile
    from dsctl.vet.values import Vet


def vet(
    image: Annotated[
        str, typer.Argument(help="NAME@sha256:DIGEST, NAME:TAG or an image id; nothing is pulled.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", "-p", help="Also try this profile's flags. Default: the one that names it."
        ),
    ] = None,
    watch: Annotated[
        float, typer.Option("--watch", min=1, metavar="S", help="Seconds to watch each start.")
    ] = 60.0,
    static_only: Annotated[
        bool, typer.Option("--static", help="Only read it, run nothing; `up` does not take that.")
    ] = False,
    trap_image: Annotated[
        str | None,
        typer.Option(
            "--trap-image", help="An image of yours with Python 3. Default: our engine image."
        ),
    ] = None,
    memory_gib: Annotated[
        float, typer.Option("--memory-gib", min=0.1, help="Memory that it may have while watched.")
    ] = 8.0,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Try another policy; see docs/vetting.md.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the vet file here.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what is good, too.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Read an image, run it where nothing can leave, and say whether it may be trusted.

    Every look-up and connection it tries is answered by a trap and written down. Exit code 1 when
    it fails the policy.
    """
    from dsctl.cli.progress_view import ProgressView
    from dsctl.paths import user_paths
    from dsctl.supervise.interrupts import interruptible
    from dsctl.vet.policy import policy_file, read_policy
    from dsctl.vet.run import Wish
    from dsctl.vet.run import vet as vet_image
    from dsctl.vet.vetfile import seal

    paths = user_paths()
    wish = Wish(
        image=image,
        profile=_profile(profile, image),
        policy=read_policy(policy or policy_file(paths)),
        watch_s=watch,
        trap_image=trap_image,
        memory_bytes=int(memory_gib * (1 << 30)),
        static_only=static_only,
    )
    key = _ready_to_keep(output)
    with ProgressView() as view, interruptible():
        found = seal(vet_image(wish, view.report), key)
    if format_ is Format.JSON:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        from dsctl.vet.show import text

        for line in text(found, verbose=verbose):
            typer.echo(line)
    for path in _keep(found, output, static_only):
        note(f"written: {path}")
    if found.verdict == "fail":
        raise typer.Exit(1)


def _profile(name: str | None, image: str) -> Profile | None:
    """The profile that was named, else the external one that names this image."""
    from dsctl.planning.catalog import load_profile, profile_names

    if name is not None:
        return load_profile(name)
    external = (p for p in map(load_profile, profile_names()) if p.engine.external)
    return next((p for p in external if p.engine.image == image), None)


def _ready_to_keep(output: Path | None) -> bytes:
    """This user's key; and places to write proved now, not after minutes of watching."""
    from dsctl.paths import make_writable, user_paths
    from dsctl.vet.vetfile import ensure_key, vet_path

    paths = user_paths()
    make_writable(vet_path(paths, "any").parent, "vet")
    if output is not None:
        make_writable(output.absolute().parent, "output")
    return ensure_key(paths)


def _keep(vet: Vet, output: Path | None, static_only: bool) -> list[Path]:
    """Write the sealed vet file and the page beside it, and a copy where it was asked for.

    One that was only read does not take the place of one that was run.
    """
    from dsctl.files import write_atomically
    from dsctl.paths import user_paths
    from dsctl.vet.show import page
    from dsctl.vet.vetfile import vet_path, write_vet

    file = vet_path(user_paths(), vet.image_id)
    written = [] if static_only else [file, file.with_suffix(".md")]
    if not static_only:
        write_vet(file, vet)
        write_atomically(file.with_suffix(".md"), page(vet))
    if output is not None:
        write_vet(output, vet)
        written.append(output)
    return written
