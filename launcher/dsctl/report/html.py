"""A report as one HTML file that needs nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources

from dsctl.report.content import Report, Section, Table

#: Tables with more columns than this become cards on a narrow screen.
_WIDE = 3


def to_html(report: Report, charts: Mapping[str, str]) -> str:
    """The report; `charts` are SVG elements by name, set where sections name them."""
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="subtitle">{escape(report.subtitle)}</p>',
        _verdicts(report),
        _contents(report),
        *(_section(section, charts, 2) for section in report.sections),
        "<footer>Made by <code>dsctl report</code>. Identifiers and paths of the machine are "
        "removed.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(report.title)}</title>\n<style>\n{_style()}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


@cache
def _style() -> str:
    return (resources.files("dsctl.report") / "style.css").read_text(encoding="utf-8")


def _verdicts(report: Report) -> str:
    cards = "".join(
        f'<div><dt>{escape(label)}</dt><dd><span class="figure">{escape(figure)}</span><br>'
        f'<span class="remark">{escape(remark)}</span></dd></div>'
        for label, figure, remark in report.verdicts
    )
    return f'<dl class="verdicts">{cards}</dl>'


def _contents(report: Report) -> str:
    links = "".join(
        f'<li><a href="#{escape(s.id)}">{escape(s.heading)}</a></li>' for s in report.sections
    )
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _section(section: Section, charts: Mapping[str, str], level: int) -> str:
    name = escape(section.id)
    parts = [f'<section aria-labelledby="{name}">']
    parts.append(f'<h{level} id="{name}">{escape(section.heading)}</h{level}>')
    parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
    parts += [_table(table, section.heading) for table in section.tables]
    parts += [_chart(chart, charts[chart]) for chart in section.charts if chart in charts]
    if section.code:
        parts.append(f"<pre><code>{escape(section.code)}</code></pre>")
    parts += [f"<blockquote>{escape(quote)}</blockquote>" for quote in section.quotes]
    if section.bullets:
        items = "".join(f"<li>{escape(text)}</li>" for text in section.bullets)
        parts.append(f"<ul>{items}</ul>")
    parts += [_section(inner, charts, level + 1) for inner in section.inside]
    parts.append("</section>")
    return "\n".join(parts)


def _table(table: Table, about: str) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        found = []
        for number, text in enumerate(row):
            kind = ' class="n"' if number in table.numeric else ""
            extra = ' scope="col"' if tag == "th" else f' data-h="{escape(table.headings[number])}"'
            found.append(f"<{tag}{kind}{extra}>{escape(text)}</{tag}>")
        return "<tr>" + "".join(found) + "</tr>"

    stack = ' class="stack"' if len(table.headings) > _WIDE else ""
    rows = "".join(cells(row, "td") for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(about)}, table">'
        f"<table{stack}><thead>{cells(table.headings, 'th')}</thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _chart(name: str, svg: str) -> str:
    """The chart inline; ids are made unique, because several charts share the page."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="|href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    label = escape(name.replace("-", " "))
    svg = svg.replace("<svg", f'<svg role="img" aria-label="Chart: {label}"', 1)
    return f"<figure>{svg}</figure>"
