"""Makes a report out of runs and benchmark files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dsctl.bench.store import load_bench
from dsctl.errors import ConfigError
from dsctl.files import write_atomically
from dsctl.quality.scored import read_result
from dsctl.report.bundle import write_bundle
from dsctl.report.content import Report, build_report
from dsctl.report.html import to_html
from dsctl.report.markdown import to_markdown
from dsctl.report.redact import Redactor


def make_report(
    out: Path,
    runs: Sequence[Path],
    benches: Sequence[Path],
    *,
    sessions: Sequence[Path] = (),
    plan: Path | None = None,
    bundle: Path | None = None,
    redact: Callable[[str], str] | None = None,
) -> list[Path]:
    """Write the report (`.html` or `.md`) and the bundle; what was written.

    Raises:
        ConfigError: another ending, nothing to report on, results of different models, no access.
    """
    if out.suffix not in (".html", ".md"):
        raise ConfigError(f"{out}: a report is .html or .md", remedy="e.g. `dsctl report out.html`")
    if not runs and not benches:
        raise ConfigError(
            "there is nothing to report on",
            remedy="give `--run DIR` of `dsctl quality run` or `--bench FILE` of `dsctl bench run`",
        )
    cleaned = redact or Redactor()
    quality = [read_result(path, sessions) for path in runs]
    bench = [(path.stem, load_bench(path)) for path in benches]
    models = {q.conditions.model for q in quality} | {b.conditions.model for _, b in bench}
    if len(models) > 1:
        raise ConfigError(
            f"these results are of different models: {', '.join(sorted(models))}",
            remedy="make one report for each, or compare them: `dsctl quality compare`",
        )
    charts = _charts(bench, plan)
    report = _clean(build_report(quality, bench, list(charts)), cleaned)
    documents = {"report.html": to_html(report, charts), "report.md": to_markdown(report)}
    written = [out]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, documents[f"report{out.suffix}"])
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}", remedy="choose another file") from None
    if bundle is not None:
        write_bundle(bundle, documents, runs, benches, cleaned)
        written.append(bundle)
    return written


def _charts(bench: Sequence[tuple[str, Any]], plan: Path | None) -> dict[str, str]:
    """SVG by name; none without matplotlib (the tables say the same)."""
    if not bench:
        return {}
    from dsctl.bench.plot import charts, svg_of

    try:
        return {name: svg_of(figure) for name, figure in charts(bench, plan).items()}
    except ConfigError:
        return {}


def _clean(value: Any, redact: Callable[[str], str]) -> Any:
    """Every text of the report redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, tuple):
        return tuple(_clean(entry, redact) for entry in value)
    if is_dataclass(value) and not isinstance(value, type):
        kept = ("id", "charts", "numeric")
        names = [f.name for f in fields(value) if f.name not in kept]
        return replace(value, **{name: _clean(getattr(value, name), redact) for name in names})
    return value


__all__ = ["Report", "make_report"]
