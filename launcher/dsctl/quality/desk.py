"""The state of a person's grading desk, and what each key does to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsctl.quality.blind import Item
from dsctl.quality.grades import Grade
from dsctl.quality.schema import Case, Suite

HELP = (
    "↑↓/jk choose · 0-9 type a score, Enter sets it · y/n required item found, F fatal on/off · "
    "space/b scroll the answer · s save and next · q leave (what is saved stays)"
)


@dataclass(frozen=True)
class Desk:
    """One item on the desk. Rows are the rubric items, then the dimensions."""

    item: Item
    case: Case
    suite: Suite
    row: int = 0
    scroll: int = 0
    typed: str = ""
    items: dict[str, bool] = field(default_factory=dict)
    dimensions: dict[str, float] = field(default_factory=dict)
    fatal: bool | None = None
    message: str = ""
    action: str | None = None  # "save" or "quit" when the shell has to act

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(kind, id) of every row."""
        items = [("item", entry.id) for entry in self.case.rubric]
        return items + [("dimension", d.id) for d in self.suite.dimensions]

    @property
    def missing(self) -> list[str]:
        """Dimensions without a score."""
        return [d.id for d in self.suite.dimensions if d.id not in self.dimensions]

    def grade(self, grader: str = "person") -> Grade:
        """What was decided so far."""
        return Grade(
            label=self.item.label,
            grader=grader,
            dimensions=self.dimensions,
            items=self.items,
            fatal=self.fatal,
            fatal_evidence="marked by the grader" if self.fatal else "",
        )


def press(desk: Desk, key: str) -> Desk:
    """The desk after a key."""
    desk = replace(desk, message="")
    if key in ("up", "k", "down", "j"):
        step = -1 if key in ("up", "k") else 1
        return replace(desk, row=max(0, min(len(desk.rows) - 1, desk.row + step)), typed="")
    if key in (" ", "b"):
        return replace(desk, scroll=max(0, desk.scroll + (10 if key == " " else -10)))
    if key == "q":
        return replace(desk, action="quit")
    if key == "F":
        return replace(desk, fatal=not desk.fatal)
    if key == "s":
        return _save(desk)
    kind, name = desk.rows[desk.row]
    if kind == "item" and key in ("y", "n"):
        return _next(replace(desk, items={**desk.items, name: key == "y"}))
    if kind == "dimension" and key.isdigit() and len(key) == 1:
        return replace(desk, typed=(desk.typed + key)[-3:])
    if kind == "dimension" and key == "backspace":
        return replace(desk, typed=desk.typed[:-1])
    if kind == "dimension" and key == "enter" and desk.typed:
        return _score(desk, name)
    return desk


def _score(desk: Desk, name: str) -> Desk:
    score = int(desk.typed)
    if score > 100:
        return replace(desk, typed="", message=f"{score} is more than 100")
    return _next(replace(desk, dimensions={**desk.dimensions, name: float(score)}, typed=""))


def _next(desk: Desk) -> Desk:
    return replace(desk, row=min(len(desk.rows) - 1, desk.row + 1))


def _save(desk: Desk) -> Desk:
    if desk.missing:
        return replace(desk, message=f"no score yet: {', '.join(desk.missing)}")
    if desk.fatal is None:
        desk = replace(desk, fatal=False)
    return replace(desk, action="save")
