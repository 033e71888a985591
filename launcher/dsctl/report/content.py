"""What a report says, before it is set in any format. Pure: results in, sections out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dsctl.bench.figures import summarise
from dsctl.bench.schema import BenchResult
from dsctl.bench.table import HEADINGS, remarks, rows
from dsctl.measure.conditions import Conditions
from dsctl.quality.results import CaseResult, SuiteResult

GIB = 2**30


@dataclass(frozen=True)
class Table:
    """A table; `numeric` are the columns that are set flush right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, tables, lists, quotations and named charts, in that order."""

    id: str
    heading: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    bullets: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()
    code: str = ""
    inside: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Report:
    """The whole report. `verdicts` are the few figures at the top: (label, figure, remark)."""

    title: str
    subtitle: str
    verdicts: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    sources: tuple[str, ...] = field(default=())


def build_report(
    quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]], charts: Sequence[str]
) -> Report:
    """The report of some results; they must be of one model (the caller sees to that)."""
    conditions = [q.conditions for q in quality] + [b.conditions for _, b in bench]
    first = conditions[0]
    created = min([q.created for q in quality] + [b.created for _, b in bench])
    graded = [q for q in quality if q.graded]
    sections = [
        Section("summary", "Summary", paragraphs=tuple(_summary(quality, bench))),
        _system(conditions),
        _method(quality, bench),
        *(_suite(q) for q in quality),
        *([_speed(bench, charts)] if bench else []),
        _interpretation(quality, bench),
        _reproduce(quality, bench),
    ]
    date = datetime.fromtimestamp(created, UTC).strftime("%d %B %Y").lstrip("0")
    where = f"profile {first.profile}" if first.profile else "an OpenAI-compatible endpoint"
    title = "Validation report" if graded else "Measurement report"
    return Report(
        title=f"{title}: {first.model}",
        subtitle=f"{where} · begun on {date} · dsctl {first.dsctl_version}",
        verdicts=tuple(_verdicts(quality, bench)),
        sections=tuple(sections),
    )


def _verdicts(
    quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]]
) -> list[tuple[str, str, str]]:
    found = []
    for q in quality:
        if q.final is None:
            found.append((q.title, "–", "not graded yet"))
            continue
        remark = "provisional" if q.provisional else "of 100"
        if q.raw is not None and q.raw - q.final > 0.005:
            remark = f"{q.raw:.2f} before caps"
        found.append((q.title, f"{q.final:.2f}", remark))
    for q in quality:
        if q.graded and q.rate_tok_s is not None:
            found.append(("Effective speed", f"{q.rate_tok_s:.2f}", "tok/s, whole requests"))
            break
    for name, result in bench:
        single = [summarise(c) for c in result.cells if c.rounds and c.concurrency == 1]
        speeds = [s.decode_tok_s for s in single if s.decode_tok_s]
        if speeds:
            best = max(speeds, key=lambda s: s.mean)
            label = "Decode, one stream" if len(bench) == 1 else f"Decode, {name}"
            found.append((label, f"{best.mean:.1f}", f"± {best.sd:.1f} tok/s"))
    return found


def _summary(quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]]) -> list[str]:
    said = []
    for q in quality:
        asked = len(q.cases)
        ended = ", ".join(f"{count} {outcome}" for outcome, count in q.outcomes.items())
        text = f"{q.title}: {asked} of {asked + len(q.not_asked)} cases were asked in "
        text += f"{q.requests} requests ({ended})."
        if q.final is not None:
            text += f" The score is {q.final:.2f} of 100"
            text += " (provisional)." if q.provisional else "."
        said.append(text)
        for c in q.cases:
            if c.capped_by:
                said.append(
                    f"{c.case}, {c.title}, scored {c.raw:.0f} before it was capped at "
                    f"{c.final:.0f} for a {c.capped_by}."
                )
        if q.rate_tok_s is not None:
            rates = [c.rate_tok_s for c in q.cases if c.rate_tok_s is not None]
            said.append(
                f"It generated {q.tokens:,} tokens in {q.total_s:.2f} s of request time, "
                f"{q.rate_tok_s:.2f} tok/s; cases ranged from {min(rates):.2f} to {max(rates):.2f}."
            )
    for name, result in bench:
        measured = sum(bool(c.rounds) for c in result.cells)
        said.append(
            f"Speed ({name}): {measured} points of depth, length and concurrency were measured "
            f"with {result.spec.runs} runs each on {result.spec.corpus} text."
        )
    return said


def _system(conditions: Sequence[Conditions]) -> Section:
    first = conditions[0]
    tables = []
    host = _host_rows(first.facts or {})
    if host:
        tables.append(Table(("Host", "Value"), tuple(host)))
    software = [
        ("Model", first.model),
        ("Profile", first.profile or "not known"),
        ("Engine", _engine(first)),
        ("Image", first.image_digest or "none"),
        ("Window", f"{first.max_model_len:,} tokens" if first.max_model_len else "not known"),
        ("Client", f"dsctl {first.dsctl_version} over {first.endpoint_kind}"),
        *((f"Set: {key}", value) for key, value in first.overrides.items()),
    ]
    tables.append(Table(("Runtime", "Value"), tuple(software)))
    missing = () if host else ("The host is not known: the endpoint was given by its address.",)
    return Section(
        "system",
        "System and runtime",
        paragraphs=missing,
        tables=tuple(tables),
        code=" ".join(first.engine_argv),
    )


def _engine(c: Conditions) -> str:
    if c.engine is None and c.engine_version is None:
        return "not known"
    return f"{c.engine or 'server'}, version {c.engine_version or 'not known'}"


def _host_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    cpu, memory, system = facts.get("cpu"), facts.get("memory"), facts.get("system")
    if cpu:
        sockets = f"{cpu['sockets']} × " if cpu.get("sockets", 1) > 1 else ""
        found.append(("CPU", f"{sockets}{cpu['model']}, {cpu['cores']} cores"))
    if memory:
        available = memory["available_bytes"] / GIB
        found.append(
            ("Memory", f"{memory['total_bytes'] / GIB:.1f} GiB, {available:.1f} GiB available")
        )
    if system:
        name = system.get("distribution") or "Linux"
        found.append(("System", f"{name}, kernel {system['kernel']}"))
    nvml = facts.get("nvml") or {}
    for gpu in nvml.get("devices") or ():
        size = (gpu.get("memory_total") or gpu.get("memory_total_bytes") or 0) / GIB
        found.append((f"GPU {gpu.get('index')}", f"{gpu.get('name')}, {size:.1f} GiB"))
    if nvml.get("driver_version"):
        found.append(("Driver", str(nvml["driver_version"])))
    return found


def _method(quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]]) -> Section:
    said = []
    if quality:
        said.append(
            "Each case began with a fresh conversation; a case of several turns carried its own "
            "earlier answers. Requests were streamed with usage reporting, with the parameters of "
            "the suite and no others. Suites are frozen: the digest after the name covers prompts, "
            "rubric, weights and rules, and another digest is another suite."
        )
    for q in quality:
        said.append(f"{q.suite}: {' '.join(q.about.split())}")
    if any(q.graded for q in quality):
        said.append(
            "Graded suites were judged from shuffled, anonymous answers; identity, timing, token "
            "counts and finish states were opened after the scores were locked. A person's grade "
            "counts before a judge's, a judge's before a program's."
        )
        said.append(
            "Effective speed is generated tokens, hidden reasoning included, over the wall time of "
            "the whole request."
        )
    if bench:
        said.append(
            "Speeds were measured with prompts that no earlier request had, unless a point is "
            "marked warm. Decode is counted from the first token to the last, prefill from the "
            "request to the first chunk less the latency of an empty request."
        )
    return Section("method", "Method", paragraphs=tuple(said))


def _suite(q: SuiteResult) -> Section:
    headings = ("Case", "What it tests", "Score", "Tokens", "Time s", "tok/s", "Outcome")
    table = Table(
        headings,
        tuple(
            (
                f"{c.case}: {c.title}" if q.graded else c.case,
                c.tests or c.title,
                score_text(c),
                f"{c.tokens:,}",
                f"{c.total_s:.2f}",
                "–" if c.rate_tok_s is None else f"{c.rate_tok_s:.2f}",
                c.capped_by or c.outcome,
            )
            for c in q.cases
        ),
        frozenset({2, 3, 4, 5}),
    )
    tables = [table, _aggregate(q)]
    if q.dimensions:
        tables.append(
            Table(
                ("Dimension", "Score"),
                tuple((k.replace("_", " "), f"{v:.1f}") for k, v in q.dimensions.items()),
                frozenset({1}),
            )
        )
    bullets = tuple(f"{case}: {why}" for case, why in q.not_asked.items())
    remarkable = [c for c in q.cases if q.graded or c.problems or c.loop or c.usage_doubt]
    return Section(
        f"suite-{q.suite.split('@')[0]}",
        f"Results: {q.title}",
        paragraphs=(f"Suite {q.suite}.",),
        tables=tuple(tables),
        bullets=bullets,
        inside=tuple(_case(q, c) for c in remarkable),
    )


def score_text(c: CaseResult) -> str:
    """`96`, `86 → 35` after a cap, `80*` where grades are missing, `–` without any."""
    if c.final is None or c.raw is None:
        return "–"
    if c.capped_by:
        return f"{c.raw:.0f} → {c.final:.0f}"
    return f"{c.final:.0f}{'*' if c.provisional else ''}"


def _aggregate(q: SuiteResult) -> Table:
    lines = []
    if q.raw is not None and q.final is not None:
        lines.append(("Case-weighted score before caps", f"{q.raw:.2f}"))
        lines.append(("Case-weighted score", f"{q.final:.2f}"))
    lines += [
        ("Requests", str(q.requests)),
        ("Generated tokens", f"{q.tokens:,}"),
        ("Sum of request times", f"{q.total_s:.2f} s"),
        ("Aggregate speed", "–" if q.rate_tok_s is None else f"{q.rate_tok_s:.2f} tok/s"),
    ]
    lines += [(f"Ended: {outcome}", str(count)) for outcome, count in q.outcomes.items()]
    return Table(("Aggregate", "Value"), tuple(lines), frozenset({1}))


def _case(q: SuiteResult, c: CaseResult) -> Section:
    said = []
    if c.fatal:
        said.append("A fatal defect was found.")
    found = [name for name, there in c.items.items() if there]
    absent = [name for name, there in c.items.items() if not there]
    if c.items:
        said.append(
            f"Required conclusions found: {', '.join(found) or 'none'}."
            + (f" Not found: {', '.join(absent)}." if absent else "")
        )
    if c.graded_by:
        by: dict[str, list[str]] = {}
        for dimension, grader in c.graded_by.items():
            by.setdefault(grader, []).append(dimension.replace("_", " "))
        said.append(
            "Graded by " + "; ".join(f"{who}: {', '.join(d)}" for who, d in by.items()) + "."
        )
    if len(c.turn_tokens) > 1:
        turns = "; ".join(
            f"turn {n}: {tokens:,} tokens in {seconds:.2f} s"
            for n, (tokens, seconds) in enumerate(
                zip(c.turn_tokens, c.turn_total_s, strict=True), start=1
            )
        )
        said.append(turns + ".")
    if c.loop:
        said.append(f"Loop detector: {c.loop}.")
    if c.usage_doubt:
        said.append(f"The server's token count was not believed: {c.usage_doubt}.")
    bullets = [*c.problems, *c.notes, *(f"graders differ: {d}" for d in c.disagreements)]
    quotes = (c.fatal_evidence,) if c.fatal_evidence else ()
    return Section(
        f"case-{q.suite.split('@')[0]}-{c.case}",
        f"{c.case}: {c.title}",
        paragraphs=tuple(said),
        bullets=tuple(bullets),
        quotes=quotes,
    )


def _speed(bench: Sequence[tuple[str, BenchResult]], charts: Sequence[str]) -> Section:
    tables, bullets = [], []
    for name, result in bench:
        tables.append(Table(HEADINGS, tuple(rows(result)), frozenset({2, 3, 4, 5, 6})))
        prefix = f"{name}: " if len(bench) > 1 else ""
        bullets += [prefix + text for text in remarks(result)]
    return Section(
        "speed", "Speed", tables=tuple(tables), bullets=tuple(bullets), charts=tuple(charts)
    )


def _interpretation(
    quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]]
) -> Section:
    said = [
        "These results describe the whole tested configuration: model, weights, engine, settings "
        "and machine together. No part of it was changed while the others were held, so nothing "
        "here says which part caused a good or a bad answer."
    ]
    bullets = []
    for q in quality:
        good = [c for c in q.cases if c.final is not None and c.final >= 85]
        scored = [c for c in q.cases if c.final is not None]
        if scored:
            bullets.append(f"{len(good)} of {len(scored)} cases of {q.suite} scored 85 or more.")
        natural = q.outcomes.get("stop", 0)
        bullets.append(f"{natural} of {q.requests} requests ended by themselves with an answer.")
        if len(q.cases) < 30 and q.graded:
            bullets.append(
                f"{len(q.cases)} cases, asked once each, are a screen: a difference of a few "
                "points between two runs is within what sampling alone does."
            )
        for c in q.cases:
            if c.outcome == "empty-thinking":
                bullets.append(f"{c.case}: the model was expected to think and did not.")
    if bench:
        longest = max(
            (c.depth + c.prefill for _, b in bench for c in b.cells if c.rounds), default=0
        )
        bullets.append(
            f"Speeds were measured up to {longest:,} tokens of context; longer ones were not."
        )
        if any(b.spec.corpus == "filler" for _, b in bench):
            bullets.append("Filler text repeats itself: it flatters drafts and caches.")
    return Section(
        "interpretation", "Interpretation", paragraphs=tuple(said), bullets=tuple(bullets)
    )


def _reproduce(quality: Sequence[SuiteResult], bench: Sequence[tuple[str, BenchResult]]) -> Section:
    first = quality[0].conditions if quality else bench[0][1].conditions
    commands = []
    if first.profile:
        sets = "".join(f" --set {key}={value}" for key, value in first.overrides.items())
        commands.append(f"dsctl up --profile {first.profile}{sets}")
    commands += [q.command for q in quality] + [b.command for _, b in bench]
    return Section(
        "reproduce",
        "To reproduce",
        paragraphs=("With the same checkpoint, on the same kind of machine:",),
        code="\n".join(command for command in commands if command),
    )
