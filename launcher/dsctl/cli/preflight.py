"""`dsctl preflight`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.model.facts import Facts
    from dsctl.model.finding import Report
    from dsctl.model.profile import Profile
    from dsctl.preflight.registry import CheckContext

_ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        help="Check for this profile. Without it: which can run here, and the best of them.",
    ),
]
_SysrootOption = Annotated[
    Path | None, typer.Option("--sysroot", metavar="DIR", help="Check a recorded host instead.")
]
_FactsOption = Annotated[
    str | None,
    typer.Option("--facts", metavar="FILE|-", help="Check facts that `dsctl facts` wrote."),
]
_IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ID", help="Turn a failed check into a warning."),
]
_SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one knob.")
]


def preflight(
    profile: _ProfileOption = None,
    sysroot: _SysrootOption = None,
    facts: _FactsOption = None,
    ignore: _IgnoreOption = None,
    set_: _SetOption = None,
    engine: Annotated[
        str, typer.Option("--engine", help="`process` or `docker`: how it would be started.")
    ] = "process",
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what is safe to mend; shows the commands, asks.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash the whole checkpoint too (minutes, once).")
    ] = False,
    prove_p2p: Annotated[
        bool,
        typer.Option("--prove-p2p", help="Prove peer access between the cards with a real run."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what is good and what was skipped too.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Check everything about this machine that will hurt, in order of pain."""
    _refuse_contradictions(sysroot, facts, live_only=fix or prove_p2p, engine=engine)
    profiles = _profiles(profile, set_ or [])
    found = _facts(sysroot, facts)
    if prove_p2p:
        _prove(found)
    from dataclasses import replace

    live = facts is None and sysroot is None
    base = replace(_context(found, profiles, sysroot, live=live, engine=engine), deep=deep)
    report = _report(base, profiles, tuple(ignore or ()))
    if fix and _fix(base, profiles, report, yes=yes):
        base = replace(base, facts=_facts(None, None))
        report = _report(base, profiles, tuple(ignore or ()))
    if format_ is Format.JSON:
        print_json(report)
    else:
        from dsctl.cli.preflight_view import show

        show(report, base.facts, verbose=verbose)
    if report.verdict == "fail":
        raise typer.Exit(1)


def _refuse_contradictions(
    sysroot: Path | None, facts: str | None, *, live_only: bool, engine: str
) -> None:
    from dsctl.errors import ConfigError

    if engine not in ("process", "docker"):
        raise ConfigError(f"--engine {engine}: unknown", remedy="`process` or `docker`")
    if sysroot is not None and facts is not None:
        raise ConfigError("--sysroot and --facts exclude each other", remedy="give one of them")
    if live_only and (sysroot is not None or facts is not None):
        raise ConfigError(
            "--fix and --prove-p2p act on this machine, not on recorded facts",
            remedy="leave --sysroot and --facts away",
        )


def _facts(sysroot: Path | None, name: str | None) -> Facts:
    from dsctl.errors import ConfigError
    from dsctl.host.collect import collect, read_facts

    if name is None:
        return collect(sysroot)
    if name == "-":
        return read_facts(sys.stdin.read(), "standard input")
    try:
        return read_facts(Path(name).read_text(), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"--facts {name}: {reason}", remedy="make it with `dsctl facts -o FILE`"
        ) from None


def _profiles(name: str | None, pairs: list[str]) -> list[Profile]:
    """The one that was named, or all of them to choose from."""
    from dsctl.cli.up import parse_overrides
    from dsctl.planning.catalog import load_profile, profile_names

    overrides = parse_overrides(pairs)
    names = profile_names() if name in (None, "auto") else [name]
    return [load_profile(n, overrides) for n in names if n]


def _context(
    facts: Facts, profiles: list[Profile], sysroot: Path | None, *, live: bool, engine: str
) -> CheckContext:
    from dsctl.paths import user_paths
    from dsctl.preflight.registry import CheckContext

    return CheckContext(
        facts,
        profiles[0],
        files=Path("/") if live else sysroot,
        paths=user_paths() if live else None,
        engine=engine,
    )


def _report(base: CheckContext, profiles: list[Profile], ignore: tuple[str, ...]) -> Report:
    """The report for one profile, or for the one `auto` takes with a word on all others."""
    from dataclasses import replace

    from dsctl.cli.progress_view import ProgressView
    from dsctl.preflight.run import run_checks, with_plan

    with ProgressView() as view:
        base = replace(base, progress=view.report)
        if len(profiles) == 1:
            return run_checks(with_plan(base), ignore)
        from dsctl.preflight.auto import preflight_auto

        return preflight_auto(profiles, base, ignore)


def _fix(base: CheckContext, profiles: list[Profile], report: Report, *, yes: bool) -> bool:
    """Show, ask, mend. True when something was changed."""
    from dataclasses import replace

    from dsctl.preflight.fix import carry_out, fixes_for
    from dsctl.preflight.run import with_plan

    profile = next(p for p in profiles if p.id == report.profile)
    fixes = fixes_for(with_plan(replace(base, profile=profile)), report)
    if not fixes:
        note("nothing here that --fix can mend safely")
        return False
    changed = False
    for one in fixes:
        note(f"\n{one.finding}: {one.title}")
        for step in one.steps:
            note(f"  $ {step.text}")
        note(f"  undo: {one.undo_text}")
        if not yes and not _agreed(one.title):
            note("  left as it is")
            continue
        carry_out(one)
        note("  done")
        changed = True
    return changed


def _agreed(title: str) -> bool:
    """A question on the terminal; without one the answer is no."""
    if not sys.stdin.isatty():
        note("  not a terminal: nothing is changed without --yes")
        return False
    return typer.confirm(f"  {title}?", default=False, err=True)


def _prove(facts: Facts) -> None:
    from dsctl.cli.progress_view import ProgressView
    from dsctl.paths import user_paths
    from dsctl.preflight.prove import prove_and_keep

    with ProgressView() as view:
        proof = prove_and_keep(facts, user_paths(), view.report)
    allowed = (
        "`--set peer_to_peer=on` is allowed on this hardware" if proof.healthy else "it stays off"
    )
    note(f"peer access: {proof.verdict}; {allowed}")
