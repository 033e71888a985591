"""A report as Markdown. Pure."""

from __future__ import annotations

from dsctl.report.content import Report, Section, Table


def to_markdown(report: Report) -> str:
    """The report as one Markdown document; charts are left to the HTML."""
    lines = [f"# {report.title}", "", report.subtitle, ""]
    lines += [f"- **{label}: {figure}** ({remark})" for label, figure, remark in report.verdicts]
    for section in report.sections:
        lines += ["", *_section(section, 2)]
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, level: int) -> list[str]:
    lines = [f"{'#' * level} {section.heading}", ""]
    for paragraph in section.paragraphs:
        lines += [paragraph, ""]
    for table in section.tables:
        lines += [*_table(table), ""]
    if section.code:
        lines += ["```", section.code, "```", ""]
    lines += [f"- {' '.join(bullet.split())}" for bullet in section.bullets]
    for quote in section.quotes:
        lines += ["", *(f"> {line}" for line in quote.splitlines())]
    for inner in section.inside:
        lines += ["", *_section(inner, level + 1)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _table(table: Table) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"

    marks = ("--:" if n in table.numeric else ":--" for n in range(len(table.headings)))
    return [line(table.headings), "| " + " | ".join(marks) + " |", *map(line, table.rows)]
