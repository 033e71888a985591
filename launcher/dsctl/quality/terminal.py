"""The terminal around the grading desk: draws it and reads keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsctl.errors import ConfigError
from dsctl.quality.blind import Item
from dsctl.quality.desk import HELP, Desk, press
from dsctl.quality.grades import Grade
from dsctl.quality.schema import Suite

if TYPE_CHECKING:
    from rich.console import RenderableType

_ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}


def grade_in_terminal(
    suite: Suite, items: Sequence[Item], save: Callable[[Grade], None]
) -> tuple[int, int]:
    """Show the items one by one until all are graded or the person leaves; (graded, of).

    Raises:
        ConfigError: there is no terminal.
    """
    from rich.live import Live

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "grading by a person needs a terminal",
            remedy="run it in one, or use `--grader program` or `--grader judge`",
        )
    graded = 0
    with _raw_keys() as read_key:
        for number, item in enumerate(items, start=1):
            desk = Desk(item, suite.case(item.case), suite)
            title = f"answer {item.label} · {number} of {len(items)}"
            with Live(draw(desk, title), screen=True, auto_refresh=False) as live:
                while desk.action is None:
                    desk = press(desk, read_key())
                    live.update(draw(desk, title), refresh=True)
            if desk.action == "quit":
                break
            save(desk.grade())
            graded += 1
    return graded, len(items)


def draw(desk: Desk, title: str) -> RenderableType:
    """Rubric on the left, answer on the right, keys below."""
    from rich.layout import Layout
    from rich.panel import Panel
    from rich.text import Text

    left = Text()
    for index, (kind, name) in enumerate(desk.rows):
        left.append(*_row(desk, index, kind, name))
    fatal = {None: "not decided", True: "YES", False: "no"}[desk.fatal]
    left.append(f"\nfatal defect [F]: {fatal}\n", "bold red" if desk.fatal else "bold")
    left.append(f"{desk.case.fatal}\n", "dim")
    answer = "\n\n".join(
        f"── turn {n} ──\n{text}" if len(desk.item.answers) > 1 else text
        for n, text in enumerate(desk.item.answers, start=1)
    )
    lines = answer.splitlines()
    shown = Text("\n".join(lines[min(desk.scroll, max(0, len(lines) - 5)) :]))
    layout = Layout()
    layout.split_column(Layout(name="top"), Layout(name="keys", size=4))
    layout["top"].split_row(
        Layout(Panel(left, title=f"{desk.case.id} {desk.case.title}"), ratio=2),
        Layout(Panel(shown, title=title), ratio=3),
    )
    layout["keys"].update(Panel(Text(desk.message or HELP, "yellow" if desk.message else "")))
    return layout


def _row(desk: Desk, index: int, kind: str, name: str) -> tuple[str, str]:
    here = index == desk.row
    pointer = "▶ " if here else "  "
    if kind == "item":
        state = {None: "[?]", True: "[y]", False: "[n]"}[desk.items.get(name)]
        text = next(entry.text for entry in desk.case.rubric if entry.id == name)
        line = f"{pointer}{state} {text}\n"
    else:
        score = desk.dimensions.get(name)
        shown = f"{desk.typed}_" if here and desk.typed else "–" if score is None else f"{score:g}"
        about = next(d.about for d in desk.suite.dimensions if d.id == name)
        line = (
            f"{pointer}{shown:>4} {name.replace('_', ' ')}" + (f": {about}" if here else "") + "\n"
        )
    return line, "bold" if here else ""


@contextmanager
def _raw_keys() -> Iterator[Callable[[], str]]:
    """Keys one by one, without echo; the terminal is put back whatever happens."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda: _named(os.read(descriptor, 8).decode("utf-8", "ignore"))
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _named(raw: str) -> str:
    if raw in _ESCAPES:
        return _ESCAPES[raw]
    return {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "": "q"}.get(
        raw, raw[:1]
    )
