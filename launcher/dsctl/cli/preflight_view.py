"""The preflight report for people: worst first, by domain, each with what to do."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from dsctl.model.finding import Finding, Report, Status

if TYPE_CHECKING:
    from rich.console import Console

    from dsctl.model.facts import Facts

_LOOK = {
    Status.FAIL: ("✗", "bold red"),
    Status.WARN: ("!", "bold yellow"),
    Status.PASS: ("✓", "green"),
    Status.SKIP: ("-", "dim"),
}
_DOMAINS = {
    "host": "host",
    "gpu": "cards",
    "pcie": "PCIe and peers",
    "docker": "container engine",
    "disk": "disks",
    "model": "checkpoint",
    "pack": "pack",
    "image": "image",
    "net": "network",
    "profile": "profile",
}


def show(report: Report, facts: Facts, *, verbose: bool) -> None:
    """Print the report on stdout, in colour where the terminal has it (`NO_COLOR` respected)."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    console.print(f"[bold]{report.profile or 'preflight'}[/bold] on {_machine(facts)}")
    statuses = [Status.FAIL, Status.WARN]
    statuses += [Status.PASS] if verbose else []
    for status in statuses:
        _section(console, [f for f in report.findings if f.status is status])
    if verbose:
        _skipped(console, [f for f in report.findings if f.status is Status.SKIP])
    if not verbose:
        _runnable(console, report)
    _close(console, report, facts, verbose=verbose)


def _machine(facts: Facts) -> str:
    """One line that says which machine this is."""
    from dsctl.preflight.outcome import gib

    parts = []
    if facts.gpus:
        names = Counter(g.name or "unknown GPU" for g in facts.gpus)
        parts += [f"{n} × {name}" if n > 1 else name for name, n in names.items()]
    if facts.cpu is not None:
        sockets = f"{facts.cpu.sockets} × " if facts.cpu.sockets > 1 else ""
        parts.append(f"{sockets}{facts.cpu.model}, {facts.cpu.cores} cores")
    if facts.memory is not None:
        parts.append(f"{gib(facts.memory.total_bytes)} of memory")
    if facts.system is not None and facts.system.distribution:
        wsl = f" (WSL{facts.system.wsl})" if facts.system.wsl else ""
        parts.append(facts.system.distribution + wsl)
    return " · ".join(parts) or "a machine that tells nothing"


def _section(console: Console, findings: list[Finding]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    order = list(_DOMAINS)

    def domain(finding: Finding) -> str:
        return finding.id.partition(".")[0]

    findings = sorted(findings, key=lambda f: (order.index(domain(f)), f.id))
    for name, group in groupby(findings, key=domain):
        console.print(f"\n[bold]{_DOMAINS[name]}[/bold]")
        for finding in group:
            sign, style = _LOOK[finding.status]
            head = f"[{style}]{sign}[/] {escape(finding.summary)}  [dim]{finding.id}[/dim]"
            console.print(Padding(head, (0, 0, 0, 2)))
            if finding.detail:
                console.print(Padding(f"[dim]{escape(finding.detail)}[/dim]", (0, 0, 0, 4)))
            if finding.remedy:
                remedy = f"[cyan]→[/cyan] {escape(finding.remedy)}"
                console.print(Padding(remedy, (0, 0, 0, 4)))


def _skipped(console: Console, findings: list[Finding]) -> None:
    """Skips in one line for each reason."""
    from rich.markup import escape
    from rich.padding import Padding

    reasons: dict[str, list[str]] = {}
    for finding in findings:
        reasons.setdefault(f"{finding.summary}: {finding.detail}", []).append(finding.id)
    if reasons:
        console.print("\n[bold]skipped[/bold]")
    for reason, ids in reasons.items():
        line = f"- {escape(reason)}  [dim]{' '.join(sorted(ids))}[/dim]"
        console.print(Padding(line, (0, 0, 0, 2)))


def _runnable(console: Console, report: Report) -> None:
    """Which profiles can run here is worth saying even when all is well."""
    found = [f for f in report.findings if f.id == "profile.runnable"]
    _section(console, [f for f in found if f.status is Status.PASS])


def _close(console: Console, report: Report, facts: Facts, *, verbose: bool) -> None:
    counts = {s: sum(f.status is s for f in report.findings) for s in Status}
    sign, style = _LOOK[report.verdict]
    console.print(
        f"\n[{style}]{sign} {report.verdict}[/]: {counts[Status.FAIL]} failed, "
        f"{counts[Status.WARN]} warned, {counts[Status.PASS]} good, {counts[Status.SKIP]} skipped"
        f"; facts took {facts.elapsed_s:.2f} s"
        + ("" if verbose else "; `--verbose` shows what is good or was skipped")
    )
