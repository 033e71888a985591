"""`dsctl bench`: measure speed, compare two arms, draw charts, hold against the planner."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json
from dsctl.cli.quality import EndpointOption, KeyOption, ModelOption

if TYPE_CHECKING:
    from dsctl.bench.ab import AbResult
    from dsctl.bench.schema import Cell, Summary

app = typer.Typer(help="Speed: run, compare, plot.", no_args_is_help=True)


class TableFormat(StrEnum):
    """How `bench run` prints."""

    TEXT = "text"
    MD = "md"
    JSON = "json"
    CSV = "csv"


class CorpusName(StrEnum):
    """Which text prompts are made of."""

    DIVERSE = "diverse"
    FILLER = "filler"


@app.command("run")
def run(
    pp: Annotated[list[int] | None, typer.Option("--pp", help="Prompt tokens (2048).")] = None,
    tg: Annotated[list[int] | None, typer.Option("--tg", help="Generated tokens (32).")] = None,
    depth: Annotated[
        list[int] | None, typer.Option("--depth", "-d", help="Tokens of context before (0).")
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", "-c", help="Streams at once (1).")
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Also with the context in the prefix cache.")
    ] = False,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1)] = 3,
    corpus: Annotated[
        CorpusName, typer.Option("--corpus", help="`filler` repeats one sentence: it flatters.")
    ] = CorpusName.DIVERSE,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Go on past the end of the answer.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Result file (JSON); resumes what is there.")
    ] = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: KeyOption = None,
    format_: Annotated[TableFormat, typer.Option("--format")] = TableFormat.TEXT,
) -> None:
    """Measure prefill, decode, first-token and inter-token times."""
    import sys

    from dsctl.bench.run import run_bench
    from dsctl.bench.schema import Spec
    from dsctl.bench.table import csv_text, markdown
    from dsctl.measure.subject import find_subject

    spec = Spec(
        prefill=_positive("--pp", pp, 2048),
        decode=_positive("--tg", tg, 32),
        depths=_positive("--depth", depth, 0, least=0),
        concurrency=_positive("--concurrency", concurrency, 1),
        caches=("cold", "warm") if warm else ("cold",),
        runs=runs,
        corpus=corpus.value,
        seed=seed,
        exact=exact,
    )
    subject = find_subject(endpoint, model, api_key_env=api_key_env)
    note(f"measuring {subject.model} at {subject.target}")
    command = " ".join(["dsctl", *sys.argv[1:]])
    result = run_bench(spec, subject, out, command=command, observer=_Progress())
    if format_ is TableFormat.JSON:
        print_json(result)
    elif format_ is TableFormat.CSV:
        sys.stdout.write(csv_text(result))
    else:
        sys.stdout.write(markdown(result))


def _positive(flag: str, values: list[int] | None, default: int, least: int = 1) -> tuple[int, ...]:
    from dsctl.errors import ConfigError

    for value in values or ():
        if value < least:
            raise ConfigError(
                f"{flag} {value}: at least {least}", remedy=f"e.g. `{flag} {default}`"
            )
    return tuple(dict.fromkeys(values)) if values else (default,)


class _Progress:
    """A line per cell on stderr."""

    def cell_begins(self, cell: Cell) -> None:
        from dsctl.bench.table import test_names

        note(f"  {' / '.join(test_names(cell))} …")

    def cell_ends(self, cell: Cell, summary: Summary) -> None:
        from dsctl.bench.table import shown

        if cell.skipped:
            note(f"    skipped: {cell.skipped}")
        else:
            note(
                f"    prefill {shown(summary.prefill_tok_s)} tok/s, "
                f"decode {shown(summary.decode_tok_s)} tok/s"
            )


@app.command("ab")
def ab(
    a: Annotated[str, typer.Argument(metavar="A", help="Address, or PROFILE[,KEY=VALUE]…")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The same; not with --preset.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="`spec`: profile A without and with its draft.")
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", min=4, help="Interleaved speed pairs.")] = 8,
    draws: Annotated[
        int, typer.Option("--draws", min=2, help="Samples per prompt and arm at temperature 1.")
    ] = 60,
    pp: Annotated[int, typer.Option("--pp", min=1)] = 512,
    tg: Annotated[int, typer.Option("--tg", min=2)] = 128,
    alpha: Annotated[float, typer.Option("--alpha", help="Error rate of the test.")] = 0.01,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    model: ModelOption = None,
    api_key_env: KeyOption = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Compare two arms, interleaved: speed and answers. Exit code 1 when the answers differ."""
    from dsctl.bench.ab import AbSpec, run_ab
    from dsctl.bench.arms import parse_arm, spec_preset
    from dsctl.errors import ConfigError
    from dsctl.files import write_atomically
    from dsctl.paths import make_writable

    if preset is not None and (preset != "spec" or b is not None):
        raise ConfigError(
            f"--preset {preset}: give `--preset spec` and one profile",
            remedy="e.g. `dsctl bench ab dual96-dspark --preset spec`",
        )
    if not 0 < alpha < 1:
        raise ConfigError(f"--alpha {alpha:g}: no error rate", remedy="give one between 0 and 1")
    if out is not None:  # before hours of measuring
        make_writable(out.absolute().parent, "output")
    if preset is None and b is None:
        raise ConfigError(
            "there is only one arm", remedy="give two, or a profile and --preset spec"
        )
    arms = spec_preset(a) if preset else (parse_arm(a, "A"), parse_arm(str(b), "B"))
    spec = AbSpec(prefill=pp, decode=tg, pairs=pairs, draws=draws, alpha=alpha, seed=seed)
    result = run_ab(*arms, spec, model=model, key_env=api_key_env, say=note)
    if out is not None:
        write_atomically(out, result.model_dump_json(indent=1))
    if format_ is Format.JSON:
        print_json(result)
    else:
        _show_ab(result)
    if result.answers_differ:
        raise typer.Exit(1)


def _show_ab(r: AbResult) -> None:
    typer.echo(f"decode   B/A {r.decode.estimate:.3f}  [{r.decode.low:.3f}, {r.decode.high:.3f}]")
    if r.prefill:
        p = r.prefill
        typer.echo(f"prefill  B/A {p.estimate:.3f}  [{p.low:.3f}, {p.high:.3f}]")
    g = r.greedy
    typer.echo(
        f"greedy   {g.equal} of {g.prompts} answers equal "
        f"(A against itself: {g.baseline_equal} of {g.prompts})"
    )
    if r.logprobs:
        lp = r.logprobs
        typer.echo(
            f"logprobs mean |Δ| {lp.mean_abs:.5f}, max {lp.max_abs:.4f} over {lp.tokens} tokens "
            f"(A against itself: mean {lp.baseline_mean_abs:.5f})"
        )
    for name, draft in (("A", r.draft_a), ("B", r.draft_b)):
        if draft:
            typer.echo(
                f"draft {name}  {draft.acceptance_length:.2f} tokens per step, "
                f"{draft.acceptance_rate:.1%} accepted"
            )
    d = r.distribution
    verdict = (
        f"no difference found with {d.draws_per_arm} draws of {d.prompts} prompts"
        if d.same
        else f"A and B sample DIFFERENT distributions (most at tokens {d.positions})"
    )
    typer.echo(f"sampling p = {d.p_value:.4f} at error rate {d.alpha:g}: {verdict}")


@app.command("plot")
def plot(
    files: Annotated[list[Path], typer.Argument(help="Result files; several share each chart.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory.")] = Path("charts"),
    plan: Annotated[
        Path | None, typer.Option("--plan", help="`dsctl plan --format json` for the memory bar.")
    ] = None,
) -> None:
    """Draw charts as SVG and PNG."""
    from dsctl.bench.plot import plot_all
    from dsctl.bench.store import load_bench

    results = [(file.stem, load_bench(file)) for file in files]
    for path in plot_all(results, out, plan):
        typer.echo(str(path))


@app.command("roofline")
def roofline(
    file: Annotated[Path, typer.Argument(help="Result file.")],
    plan: Annotated[Path, typer.Option("--plan", help="`dsctl plan --profile P --format json`.")],
    format_: FormatOption = Format.TEXT,
) -> None:
    """Hold measured speeds against what the planner predicts for the profile."""
    from dsctl.bench.roofline import read_prediction
    from dsctl.bench.roofline import roofline as compute
    from dsctl.bench.store import load_bench

    found = compute(load_bench(file), read_prediction(plan))
    if format_ is Format.JSON:
        print_json(found)
        return
    typer.echo(f"{'test':<26}{'measured':>10}{'predicted':>18}{'bound':>10}{'of bound':>10}")
    for p in found.points:
        typer.echo(
            f"{p.test:<26}{p.measured_tok_s:>10.1f}{p.low:>9.0f}–{p.high:<8.0f}"
            f"{p.bound:>10.0f}{p.share_of_bound:>10.1%}  {p.verdict}"
        )
