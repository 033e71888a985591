"""The numbers that the reasoning suite asks for, proved from its prompts by computation."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from functools import cache

import pytest

from dsctl.quality.catalog import load_suite
from dsctl.quality.schema import Case, Suite


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("reasoning")


def prompt(suite: Suite, case: str, turn: int = 1) -> str:
    return suite.case(case).turns[turn - 1].user


def table(text: str) -> list[list[str]]:
    """Rows of the Markdown tables in a text, headings and rules left out."""
    rows = [
        [c.strip() for c in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip().startswith("|")
    ]
    return [row for row in rows if not set("".join(row)) <= set("- ")]


def rubric(case: Case) -> str:
    return " ".join(item.text for item in case.rubric)


def test_weights_dimensions_and_caps_are_those_of_the_protocol(suite: Suite) -> None:
    assert [case.weight for case in suite.cases] == [14, 12, 14, 14, 16, 10, 10, 10]
    assert sum(case.weight for case in suite.cases) == 100
    assert suite.caps is not None
    assert (suite.caps.fatal, suite.caps.hard_loop, suite.caps.exhaustion) == (35, 20, 10)
    assert len(suite.dimensions) == 10
    assert sum(d.weight for d in suite.dimensions) == 100
    assert suite.request == {"max_tokens": 32768}
    assert all(case.fatal for case in suite.cases)


def test_c1_the_limit_follows_from_mtu_and_overhead(suite: Suite) -> None:
    text = prompt(suite, "C1")
    overhead = int(re.search(r"adds exactly (\d+) bytes", text).group(1))  # type: ignore[union-attr]
    mtu = int(re.search(r"MTU of (\d+) bytes", text).group(1))  # type: ignore[union-attr]
    assert mtu - overhead == 1404
    assert f"{mtu - overhead + 1} to {mtu} bytes" in text


class Works:
    """C3 as its prompt states it."""

    def __init__(self, text: str) -> None:
        values = {
            row[0]: [int(cell.strip("$")) for cell in row[1:]]
            for row in table(text)
            if row[0] != "per batch"
        }
        self.accepted, self.high = values["accepted units"], values["of these grade H"]
        self.energy, self.cost = values["energy units"], values["cost"]
        self.volume = int(re.search(r"at least ([\d,]+) accepted", text).group(1).replace(",", ""))  # type: ignore[union-attr]
        self.share = Fraction(re.search(r"at least (\d+) %", text).group(1)) / 100  # type: ignore[union-attr]
        self.energy_limit = int(re.search(r"at most (\d+) energy", text).group(1))  # type: ignore[union-attr]
        self.most = [
            int(n) for n in re.search(r"most (\d+) batches from A and at most (\d+)", text).groups()
        ]  # type: ignore[union-attr]

    def of(self, row: list[int], plan: tuple[int, int]) -> int:
        return row[0] * plan[0] + row[1] * plan[1]

    def feasible(self, most_a: int) -> list[tuple[int, int]]:
        plans = itertools.product(range(most_a + 1), range(self.most[1] + 1))
        return [
            plan
            for plan in plans
            if (total := self.of(self.accepted, plan)) >= self.volume
            and self.of(self.high, plan) >= self.share * total
            and self.of(self.energy, plan) <= self.energy_limit
        ]


def test_c3_every_plan_enumerated(suite: Suite) -> None:
    works = Works(prompt(suite, "C3"))
    plans = works.feasible(works.most[0])
    best = min(plans, key=lambda plan: works.of(works.cost, plan))
    assert best == (6, 5)
    assert [
        works.of(row, best) for row in (works.accepted, works.high, works.energy, works.cost)
    ] == [1026, 522, 405, 4048]
    assert plans == [(6, 5), (7, 4)]
    assert works.of(works.cost, (7, 4)) == 4136
    share = Fraction(works.of(works.high, (5, 6)), works.of(works.accepted, (5, 6)))
    assert (works.of(works.high, (5, 6)), works.of(works.accepted, (5, 6))) == (468, 1020)
    assert round(float(share) * 100, 1) == 45.9
    assert works.of(works.accepted, (5, 6)) >= works.volume  # only the grade share fails
    assert works.of(works.energy, (5, 6)) <= works.energy_limit
    assert works.feasible(5) == []
    for number in ("1,026", "522", "405", "$4,048", "$4,136", "45.9 %"):
        assert number in rubric(suite.case("C3"))


class Jobs:
    """C4 as its prompt states it."""

    def __init__(self, text: str) -> None:
        self.hours: dict[str, int] = {}
        self.needs: dict[str, set[str]] = {}
        self.release: dict[str, int] = {}
        self.deadline: dict[str, int] = {}
        self.after: dict[str, set[str]] = {}
        for name, hours, needs, release, deadline, after in table(text):
            if name == "job":
                continue
            self.hours[name] = int(hours)
            self.needs[name] = {"GPU", "specialist"} & set(needs.split())
            self.release[name], self.deadline[name] = int(release), int(deadline)
            self.after[name] = set(re.findall(r"\b[A-Z]\b", after))
        begin, end = re.search(r"maintenance from (\d+) to (\d+)", text).groups()  # type: ignore[union-attr]
        self.maintenance = (int(begin), int(end))

    def search(self, best_possible: int = 25) -> tuple[int, list[dict[str, int]]]:
        """(least end of the mandatory jobs, all schedules that reach it), by exhaustive search.

        All lengths and bounds are whole hours, so some best schedule starts on whole hours.
        """
        names = sorted(self.hours)
        least, found = best_possible, []
        starts: dict[str, int] = {}

        def free(name: str, at: int) -> bool:
            end = at + self.hours[name]
            if "GPU" in self.needs[name] and at < self.maintenance[1] and self.maintenance[0] < end:
                return False
            return all(
                not (self.needs[name] & self.needs[other])
                or end <= starts[other]
                or starts[other] + self.hours[other] <= at
                for other in starts
            )

        def place() -> None:
            nonlocal least
            if len(starts) == len(names):
                end = max(starts[n] + self.hours[n] for n in names if n != "X")
                if end < least:
                    least = end
                    found.clear()
                if end == least:
                    found.append(dict(starts))
                return
            name = next(n for n in names if n not in starts and self.after[n] <= set(starts))
            ready = max(
                [self.release[name], *(starts[p] + self.hours[p] for p in self.after[name])]
            )
            last = min(self.deadline[name], 24 if name == "X" else least) - self.hours[name]
            for at in range(ready, last + 1):
                if free(name, at):
                    starts[name] = at
                    place()
                    del starts[name]

        place()
        return least, found


@cache
def jobs() -> Jobs:
    return Jobs(prompt(load_suite("reasoning"), "C4"))


def test_c4_the_schedule_is_the_only_optimum_and_ends_at_17() -> None:
    least, found = jobs().search()
    assert least == 17
    assert found == [{"A": 8, "B": 0, "C": 4, "D": 11, "E": 2, "F": 15, "H": 4}]


def test_c4_accepting_x_delays_the_end_to_19() -> None:
    with_x = Jobs(prompt(load_suite("reasoning"), "C4"))
    with_x.hours["X"], with_x.needs["X"], with_x.after["X"] = 1, {"GPU"}, set()
    with_x.release["X"], with_x.deadline["X"] = 0, 8
    least, found = with_x.search()
    assert least == 19
    assert all(schedule["H"] >= 8 for schedule in found)


def test_c4_both_lower_bounds_are_17() -> None:
    work = sum(h for name, h in jobs().hours.items() if "GPU" in jobs().needs[name])
    assert work + 2 == 17
    assert sum(jobs().hours[name] for name in "BECADF") == 17


def test_c5_the_prompt_requires_every_outcome_to_be_idempotent(suite: Suite) -> None:
    text = prompt(suite, "C5")
    for word in ("invalid input", "missing account", "insufficient funds", "Every outcome"):
        assert word in text
    assert "FOR UPDATE" in text
    assert "WHERE id = :src_id" in text


def test_c7_bounds_and_independence(suite: Suite) -> None:
    text = prompt(suite, "C7")
    d1, d2, h1, h2 = (Fraction(int(n), 100) for n in re.findall(r"(\d+) % are positive", text))
    prior = Fraction(1, 10)
    assert "One person in ten" in text
    low = lambda a, b: max(Fraction(0), a + b - 1)  # noqa: E731  (Fréchet's lower bound)
    assert (low(d1, d2), min(d1, d2)) == (Fraction(1, 2), Fraction(7, 10))
    assert (low(h1, h2), min(h1, h2)) == (0, Fraction(1, 10))

    def posterior(joint_d: Fraction, joint_h: Fraction) -> Fraction:
        return prior * joint_d / (prior * joint_d + (1 - prior) * joint_h)

    lowest, highest = posterior(low(d1, d2), min(h1, h2)), posterior(min(d1, d2), low(h1, h2))
    assert lowest == Fraction(5, 14)
    assert round(float(lowest) * 100, 1) == 35.7
    assert highest == 1
    independent = posterior(d1 * d2, h1 * h2)
    assert independent == Fraction(28, 37)
    assert round(float(independent) * 100, 1) == 75.7
    grid = [
        posterior(Fraction(50 + i, 100), Fraction(j, 100)) for i in range(21) for j in range(11)
    ]
    assert min(grid) == lowest
    assert max(grid) == highest


def decide(
    evidence: list[list[int]], measures: list[tuple[str, int, set[str]]]
) -> tuple[list[int], set[str], str]:
    """C8's rules, as its prompt states them."""
    totals = [sum(column) for column in zip(*evidence, strict=True)]
    ranked = sorted(totals, reverse=True)
    if ranked[0] - ranked[1] >= 2:
        declared = {"ABC"[totals.index(ranked[0])]}
    else:
        declared = {c for c, s in zip("ABC", totals, strict=True) if ranked[0] - s < 2}
    safe = [(cost, name) for name, cost, for_ in measures if declared <= for_]
    return totals, declared, min(safe)[1]


def test_c8_both_turns(suite: Suite) -> None:
    rows = table(prompt(suite, "C8"))
    evidence = {
        r[0]: [int(c.replace("−", "-")) for c in r[1:]]
        for r in rows
        if r[0].startswith("E") and len(r[0]) == 2
    }
    measures = [
        (r[0], int(r[1]), set(r[2].split(", "))) for r in rows if r[0] in ("V", "W", "X", "Z")
    ]
    assert decide(list(evidence.values()), measures) == ([3, 4, 5], {"B", "C"}, "X")
    correction = re.search(r"A ([+−]\d), B (\d), C ([+−]\d)", prompt(suite, "C8", 2))
    assert correction is not None
    evidence["E4"] = [int(n.replace("−", "-")) for n in correction.groups()]
    assert decide(list(evidence.values()), measures) == ([7, 4, -2], {"A"}, "W")
