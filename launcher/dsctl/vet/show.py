"""A vet for people: lines for the terminal, and a page that says everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsctl.model.finding import Finding, Status
from dsctl.progress import human_bytes
from dsctl.vet.egress import told
from dsctl.vet.values import ImageFacts, Package, Run, Vet

_SIGNS = {Status.FAIL: "✗", Status.WARN: "!", Status.PASS: "✓", Status.SKIP: "-"}


def text(vet: Vet, *, verbose: bool) -> Iterator[str]:
    """The verdict, what decided it, and what to do; with `verbose` also what is good."""
    yield f"{vet.image}  {vet.image_id[:19]}"
    shown = [f for f in vet.findings if verbose or f.status in (Status.FAIL, Status.WARN)]
    for finding in shown:
        yield f"  {_SIGNS[finding.status]} {finding.summary}  ({finding.id})"
        yield from (f"      {line}" for line in finding.detail.splitlines())
        if finding.remedy:
            yield f"      → {finding.remedy}"
    counts = {s: sum(f.status is s for f in vet.findings) for s in Status}
    yield (
        f"{_SIGNS[vet.verdict]} {vet.verdict}: {counts[Status.FAIL]} failed, "
        f"{counts[Status.WARN]} warned, {counts[Status.PASS]} good"
        + ("" if verbose else "; `--verbose` shows what is good")
    )


def page(vet: Vet) -> str:
    """The whole vet as one Markdown page that needs nothing beside it."""
    return "\n".join([*_head(vet), *_findings(vet.findings), *_runs(vet.runs), *_facts(vet.facts)])


def _head(vet: Vet) -> Iterator[str]:
    yield f"# {vet.image}: {vet.verdict}"
    yield ""
    yield f"- content: `{vet.image_id}`"
    yield from (f"- digest: `{digest}`" for digest in vet.digests)
    yield f"- vetted: {vet.made_at} by {vet.made_by}, for {vet.profile or 'no profile'}"
    yield f"- policy: version {vet.policy_version}, `{vet.policy_digest}`"
    yield ""
    yield from (f"- **{reason}**" for reason in vet.reasons if vet.verdict is not Status.PASS)


def _findings(findings: Iterable[Finding]) -> Iterator[str]:
    yield from ("", "## Findings", "")
    for finding in findings:
        yield f"- {_SIGNS[finding.status]} `{finding.id}` {finding.summary}"
        yield from (f"  - {_quoted(line)}" for line in finding.detail.splitlines())
        if finding.remedy:
            yield f"  - what to do: {finding.remedy}"


def _runs(runs: Iterable[Run]) -> Iterator[str]:
    yield from ("", "## What it did when started", "")
    for run in runs:
        end = "still running" if run.exit_code is None else f"exit code {run.exit_code}"
        yield f"### {run.kind}: {run.watched_s:g} s, {end}"
        yield ""
        if run.argv:
            yield f"`{' '.join(run.argv)}`"
            yield ""
        yield from (f"- {_quoted(told(attempt))}" for attempt in run.attempts)
        if not run.attempts:
            yield "- it tried to reach nothing"
        ports = sorted({p.port for p in run.listeners if not p.loopback})
        if ports:
            yield f"- it listened on {', '.join(map(str, ports))}"
        yield from ("", "```text", *run.last_lines, "```", "")


def _facts(facts: ImageFacts) -> Iterator[str]:
    yield from ("## What is in it", "")
    rows = {
        "architecture": facts.architecture,
        "size": human_bytes(facts.size_bytes),
        "user": facts.user or "root",
        "entrypoint": " ".join(facts.entrypoint) or "none",
        "command": " ".join(facts.command) or "none",
        "working directory": facts.working_dir,
        "ports": ", ".join(facts.ports) or "none",
        "volumes": ", ".join(facts.volumes) or "none",
        "health check": facts.healthcheck or "none",
    }
    yield from (f"- {name}: {_quoted(value)}" for name, value in rows.items())
    yield from ("", "### Environment", "", *(f"- `{n}={v}`" for n, v in facts.env.items()))
    yield from ("", "### Labels", "", *(f"- `{n}={v}`" for n, v in facts.labels.items()))
    yield from ("", "### Layers", "")
    for number, layer in enumerate(facts.layers):
        yield f"- {number}: {human_bytes(layer.size_bytes)} {_quoted(layer.made_by)}"
    yield from ("", "### Files worth a look", "")
    for file in facts.files:
        hidden = ", hidden" if file.buried else ""
        place = f"layer {file.layer}{hidden}"
        yield f"- `{file.mode:04o} /{file.path}` {file.mark} {file.detail} ({place})"
    yield from ("", "### Packages", "", *map(_package, facts.packages), "")


def _package(package: Package) -> str:
    return f"- {package.name} {package.version} ({package.manager})"


def _quoted(value: str) -> str:
    """What an image says is shown, never rendered."""
    return "`" + value.replace("`", "'") + "`" if value else ""
