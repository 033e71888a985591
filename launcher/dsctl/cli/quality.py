"""`dsctl quality`: run a suite, grade it blind, show it, compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsctl.cli.output import Format, FormatOption, note, print_json

if TYPE_CHECKING:
    from dsctl.client import Event
    from dsctl.quality.answers import CaseRecord
    from dsctl.quality.blind import GradingDirectory
    from dsctl.quality.compare import Comparison
    from dsctl.quality.results import SuiteResult
    from dsctl.quality.schema import Case, Suite

app = typer.Typer(help="Quality: frozen suites, blind grading, comparison.", no_args_is_help=True)

EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", help="http://HOST:PORT/v1 or unix:/PATH; default: the deployment."),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Which of the served models.")]
KeyOption = Annotated[
    str | None, typer.Option("--api-key-env", metavar="NAME", help="Variable that holds the key.")
]


@app.command("run")
def run(
    suite: Annotated[
        str, typer.Option("--suite", "-s", help="Name, or path of a YAML file.")
    ] = "reasoning",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Directory of the run; resumes what is there."),
    ] = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: KeyOption = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="Only this case.")] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Ask for it; default: as the server does."),
    ] = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Ask every case of a suite and store the answers. An interrupted run goes on where it was."""
    import sys
    import time

    from dsctl.measure.subject import find_subject
    from dsctl.quality.run import run_suite
    from dsctl.quality.scored import read_result

    subject = find_subject(endpoint, model, api_key_env=api_key_env)
    chosen = _suite(suite, subject.questions)
    directory = out or Path(f"quality-{chosen.suite}-{time.strftime('%Y%m%d-%H%M%S')}")
    extra: dict[str, Any] = {}
    if thinking is not None:
        extra["chat_template_kwargs"] = {"thinking": thinking}
    note(f"{chosen.name}: {len(chosen.cases)} cases against {subject.model}, into {directory}")
    done = run_suite(
        chosen,
        subject,
        directory,
        only=case or (),
        extra=extra,
        command=" ".join(["dsctl", *sys.argv[1:]]),
        observer=_Progress(),
    )
    result = read_result(directory)
    _show(result, format_)
    if format_ is Format.TEXT:
        _say_next(result, directory)
    bad = not done.complete or (not chosen.is_graded and (result.final or 0) < 100)
    if bad:
        raise typer.Exit(1)


def _suite(name: str, questions: Path | None) -> Suite:
    from dsctl.errors import ConfigError
    from dsctl.paths import shipped
    from dsctl.quality.catalog import load_suite
    from dsctl.quality.smoke import smoke_suite

    if name != "smoke":
        return load_suite(name)
    if questions is None:
        questions = shipped("canary", "questions.yaml")
    if not questions.is_file():
        raise ConfigError(f"{questions} is missing", remedy="check `questions` of the profile")
    return smoke_suite(questions)


class _Progress:
    """One line per case on stderr."""

    def __init__(self) -> None:
        self._tokens = 0

    def case_begins(self, case: Case, number: int, of: int) -> None:
        self._tokens = 0
        note(f"[{number}/{of}] {case.id}: {case.title}")

    def event(self, event: Event) -> None:
        from dsctl.client import Reasoning, Text

        if isinstance(event, Text | Reasoning):
            self._tokens += event.tokens
            if self._tokens % 500 == 0:
                note(f"        {self._tokens} tokens after {event.t:.0f} s")

    def case_ends(self, case: Case, record: CaseRecord) -> None:
        tokens, seconds = (
            sum(a.tokens for a in record.answers),
            sum(a.total_s for a in record.answers),
        )
        outcome = ", ".join(dict.fromkeys(str(a.outcome) for a in record.answers))
        failure = next((f": {a.failure}" for a in record.answers if a.failure), "")
        note(f"        {outcome}{failure}; {tokens} tokens in {seconds:.2f} s")


def _say_next(result: SuiteResult, directory: Path) -> None:
    if result.graded and result.final is None:
        note(f"\ngrade it:  dsctl quality grade {directory} --grader program --grader person")
    note(f"report:    dsctl report report.html --run {directory}")


@app.command("grade")
def grade(
    runs: Annotated[list[Path], typer.Argument(help="Runs of one suite, shuffled together.")],
    grader: Annotated[
        list[str] | None, typer.Option("--grader", help="program, person, judge; may repeat.")
    ] = None,
    session: Annotated[
        Path | None, typer.Option("--session", help="Default: RUN/grading of the first run.")
    ] = None,
    judge_endpoint: Annotated[str | None, typer.Option("--judge-endpoint")] = None,
    judge_model: Annotated[str | None, typer.Option("--judge-model")] = None,
    judge_key_env: Annotated[str | None, typer.Option("--judge-key-env", metavar="NAME")] = None,
    judge_repeats: Annotated[int, typer.Option("--judge-repeats", min=1)] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Of the shuffling.")] = 0,
    lock: Annotated[
        bool, typer.Option("--lock", help="Make the scores final and reveal who is who.")
    ] = False,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Grade answers without knowing whose they are. Identities open with --lock."""
    from dsctl.errors import ConfigError
    from dsctl.quality.blind import GradingDirectory
    from dsctl.quality.rundir import RunDirectory
    from dsctl.quality.scored import read_result

    directories = [RunDirectory(path) for path in runs]
    suite = directories[0].suite()
    if not suite.is_graded:
        raise ConfigError(
            f"{suite.suite} is decided by programs and needs no grading",
            remedy=f"see it: `dsctl quality report {runs[0]}`",
        )
    desk = GradingDirectory(session or runs[0] / "grading")
    desk.begin(directories, seed)
    for name in grader or ([] if lock else ["program"]):
        if name == "program":
            _grade_by_program(desk, directories)
        elif name == "person":
            _grade_by_person(desk, suite)
        elif name == "judge":
            if judge_endpoint is None:
                raise ConfigError(
                    "--grader judge needs --judge-endpoint",
                    remedy="give the address of another model than the one under test",
                )
            _grade_by_judge(desk, suite, judge_endpoint, judge_model, judge_key_env, judge_repeats)
        else:
            raise ConfigError(
                f"--grader {name}: there is none", remedy="choose program, person or judge"
            )
    if not lock:
        note("locked: no. Identities and scores open with `dsctl quality grade RUN --lock`")
        return
    key = desk.lock()
    for label, run_path in key.runs.items():
        note(f"{label}: {Path(run_path).name}")
    for path in runs:
        _show(read_result(path, [desk.path]), format_)


def _grade_by_program(desk: GradingDirectory, directories: list[Any]) -> None:
    """Programs may see records: they cannot be swayed. They match items by the sealed key."""
    from dsctl.quality.answers import Answer, Outcome
    from dsctl.quality.programs import grade_by_program

    suite = directories[0].suite()
    loops = _loops_by_label(desk)
    for item in desk.session().items:
        kind = loops.get(item.label, "none")
        answers = [Answer(text=t, outcome=Outcome.STOP, loop_kind=kind) for t in item.answers]
        desk.save(grade_by_program(item.label, suite.case(item.case), answers))
    note(f"graded by program: {len(desk.session().items)} answers")


def _loops_by_label(desk: GradingDirectory) -> dict[str, str]:
    from dsctl.quality.blind import Key
    from dsctl.quality.loops import LoopKind
    from dsctl.quality.rundir import RunDirectory

    key = Key.model_validate_json((desk.path / "key.json").read_text())
    order = [str(kind) for kind in (LoopKind.NONE, LoopKind.SUSPECTED, LoopKind.CONFIRMED)]
    found = {}
    for item in desk.session().items:
        record = RunDirectory(Path(key.runs[item.label])).record(item.case)
        kinds = [a.loop_kind for a in record.answers] if record else ["none"]
        found[item.label] = max(kinds, key=order.index)
    return found


def _grade_by_person(desk: GradingDirectory, suite: Suite) -> None:
    from dsctl.quality.terminal import grade_in_terminal

    grades = desk.grades()
    left = [
        item
        for item in desk.session().items
        if not any(g.grader == "person" for g in grades.get(item.label, ()))
    ]
    graded, of = grade_in_terminal(suite, left, desk.save)
    note(f"graded by you: {graded} of {of}")


def _grade_by_judge(
    desk: GradingDirectory,
    suite: Suite,
    endpoint: str,
    model: str | None,
    key_env: str | None,
    repeats: int,
) -> None:
    from dsctl.client import Client
    from dsctl.measure.subject import find_subject
    from dsctl.quality.judge import grade_by_judge

    judge = find_subject(endpoint, model, api_key_env=key_env)
    grades = desk.grades()
    with Client(judge.target) as client:
        for item in desk.session().items:
            if any(g.grader.startswith("judge") for g in grades.get(item.label, ())):
                continue
            given = grade_by_judge(
                client,
                judge.model,
                suite,
                suite.case(item.case),
                item,
                repeats=repeats,
                on_problem=note,
            )
            desk.save(given)
            note(f"judged: {item.label}")


@app.command("report")
def report(
    run_: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    session: Annotated[
        list[Path] | None, typer.Option("--session", help="A grading session elsewhere.")
    ] = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """Show a run's scores, outcomes and speeds."""
    from dsctl.quality.scored import read_result

    _show(read_result(run_, session or ()), format_)


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Argument(metavar="R1")],
    after: Annotated[Path, typer.Argument(metavar="R2")],
    session: Annotated[list[Path] | None, typer.Option("--session")] = None,
    format_: FormatOption = Format.TEXT,
) -> None:
    """What changed between two runs of one suite, case by case. Never says why."""
    from dsctl.quality.compare import compare as compare_results
    from dsctl.quality.scored import read_result

    found = compare_results(read_result(before, session or ()), read_result(after, session or ()))
    if format_ is Format.JSON:
        print_json({**found.model_dump(mode="json"), "verdict": found.verdict})
    else:
        _show_comparison(found)


@app.command("suites")
def suites() -> None:
    """The suites that ship."""
    from dsctl.quality.catalog import load_suite, suite_names

    for name in suite_names():
        if name == "smoke":
            typer.echo(f"{name:<12}the served model's own questions (from its profile)")
            continue
        found = load_suite(name)
        typer.echo(
            f"{name:<12}{len(found.cases):>3} cases  {found.name}\n{'':<12}{found.about.strip()}"
        )


def _show(result: SuiteResult, format_: Format) -> None:
    if format_ is Format.JSON:
        print_json(result)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("case", "score", "outcome", "tokens", "s", "tok/s", "remark"):
        numeric = heading in ("score", "tokens", "s", "tok/s")
        table.add_column(
            heading, justify="right" if numeric else "left", no_wrap=heading != "remark"
        )
    for c in result.cases:
        score = "–" if c.final is None else f"{c.final:.0f}{'*' if c.provisional else ''}"
        if c.capped_by:
            score = f"{c.raw:.0f} → {c.final:.0f}"
        remark = c.capped_by or c.loop or c.usage_doubt or next(iter(c.problems), "")
        rate = "–" if c.rate_tok_s is None else f"{c.rate_tok_s:.2f}"
        table.add_row(c.case, score, c.outcome, str(c.tokens), f"{c.total_s:.2f}", rate, remark)
    console = Console()
    console.print(table)
    for case, why in result.not_asked.items():
        console.print(f"{case}: {why}", style="dim")
    typer.echo(_summary(result))


def _summary(result: SuiteResult) -> str:
    rate = "" if result.rate_tok_s is None else f" = {result.rate_tok_s:.2f} tok/s"
    speed = f"{result.tokens} tokens in {result.total_s:.2f} s{rate}"
    if result.final is None:
        return f"{result.suite}: not graded; {speed}"
    scores = f"{result.final:.2f}"
    if result.raw is not None and abs(result.raw - result.final) > 0.005:
        scores = f"{result.raw:.2f} before, {result.final:.2f} after the caps"
    mark = " (provisional: * lacks grades, or cases were not asked)" if result.provisional else ""
    return f"{result.suite}: {scores}{mark}; {speed}"


def _show_comparison(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("case", "R1", "R2", "Δ", "outcome", "tokens", "tok/s"):
        table.add_column(heading, justify="left" if heading in ("case", "outcome") else "right")
    for c in found.changes:
        outcome = c.outcome_before
        if c.outcome_after != outcome:
            outcome += f" → {c.outcome_after}"
        rates = [f"{r:.1f}" if r else "–" for r in (c.rate_before, c.rate_after)]
        table.add_row(
            c.case,
            f"{c.before:.0f}",
            f"{c.after:.0f}",
            f"{c.delta:+.0f}" if c.delta else "",
            outcome,
            f"{c.tokens_before} → {c.tokens_after}",
            " → ".join(rates),
        )
    Console().print(table)
    for line in found.different_conditions:
        typer.echo(f"differs: {line}")
    typer.echo(found.verdict)
