"""Texts that loop, and texts that only think for long, made by programs that do."""

from __future__ import annotations

import itertools
import random
from functools import cache

_PARAGRAPH = (
    "Let me check the second schedule again. If H starts at 4, then the GPU is free at 6, but the "
    "maintenance begins there, so A cannot start before 8. Therefore the makespan is at least 17. "
)
_NOUNS = [
    "ledger",
    "valve",
    "schedule",
    "batch",
    "packet",
    "router",
    "account",
    "claim",
    "lock",
    "bound",
    "proof",
    "window",
    "capture",
    "sensor",
    "reading",
    "table",
    "margin",
    "column",
    "deadline",
    "draft",
    "record",
    "index",
    "cache",
    "layer",
    "token",
    "gate",
    "lamp",
    "harbour",
    "bridge",
]
_VERBS = [
    "moves",
    "holds",
    "drops",
    "blocks",
    "bounds",
    "shows",
    "keeps",
    "delays",
    "rejects",
    "covers",
    "matches",
    "needs",
    "limits",
]
_LINKS = ["because", "although", "while", "unless", "whenever", "since", "after", "before"]
_TAILS = [
    "at once",
    "in the second case",
    "on the other side",
    "without the first",
    "by two hours",
    "for this lot",
]


def honest_words(count: int, seed: int) -> str:
    """Prose of about `count` words that goes on: sentences drawn anew from a small vocabulary."""
    rng = random.Random(seed)
    out: list[str] = []
    while len(out) < count:
        a, b, c, d = (rng.choice(_NOUNS) for _ in range(4))
        sentence = (
            f"The {a} {rng.choice(_VERBS)} the {b} {rng.choice(_TAILS)}, {rng.choice(_LINKS)} "
            f"the {c} {rng.choice(_VERBS)} the {d}."
        )
        out += sentence.split()
    return " ".join(out)


@cache
def looping_texts() -> dict[str, str]:
    """Loops as models make them, by kind, each after some honest thought."""
    lead = honest_words(400, seed=11) + "\n\n"
    rng = random.Random(2)
    variants = [
        "Wait, I should verify the plan with six batches of A and five of B once more.",
        "Hmm, but what about the energy limit, does it hold for that plan?",
        "The accepted output is above the limit, so the volume condition is fine.",
        "The share of grade H is above one half, so that condition is fine as well.",
        "So the plan is feasible, and I think that the answer is correct.",
        "But let me double check whether a cheaper plan exists with fewer batches.",
    ]
    return {
        "exact paragraph": lead + _PARAGRAPH * 60,
        "one sentence": lead + "I will now write the final answer. " * 80,
        "one word": lead + "the " * 500,
        "no spaces": lead + "ha" * 900,
        "zeros": lead + "The result is 0." + "0" * 1500,
        "no spaces, cjk": lead + "再检查一次。" * 300,
        "counter": lead
        + "".join(
            f"Attempt {i}: let me go through the constraints again and see whether the plan still "
            "holds under all of them, since I may have missed one.\n"
            for i in range(1, 160)
        ),
        "shuffled sentences": lead
        + " ".join(s for _ in range(90) for s in rng.sample(variants, len(variants))),
        "two alternating thoughts": lead
        + "".join(
            (
                _PARAGRAPH,
                "Actually, no. The specialist is busy until 8, so C ends at 8 and not earlier. ",
            )[i % 2]
            for i in range(80)
        ),
    }


@cache
def honest_texts() -> dict[str, str]:
    """Long reasoning that gets somewhere."""
    return {
        "prose": honest_words(6000, seed=1),
        "enumeration of plans": _enumeration(),
        "schedule search": _schedule_search(),
        "table": "\n".join(
            f"| {i} | {i * i} | {i**3} | {'odd' if i % 2 else 'even'} |" for i in range(1200)
        ),
        "long division": _division(),
        "code": _code(),
        "essay with a refrain": "".join(
            f"{honest_words(90, seed=100 + i)} So the first claim stands.\n\n" for i in range(50)
        ),
        "revisits its results": _revisits(),
    }


def _enumeration() -> str:
    lines = []
    for a, b in itertools.product(range(30), range(30)):
        volume, high, energy = 96 * a + 90 * b, 72 * a + 18 * b, 40 * a + 33 * b
        verdict = (
            "feasible" if volume >= 1000 and 2 * high >= volume and energy <= 415 else "infeasible"
        )
        lines.append(
            f"A={a}, B={b}: accepted {volume}, H {high}, energy {energy}, "
            f"cost {408 * a + 320 * b}: {verdict}."
        )
    return "Let me enumerate all plans.\n" + "\n".join(lines)


def _schedule_search() -> str:
    lines = []
    hours = {"A": 3, "B": 2, "E": 2, "H": 2, "D": 4, "F": 2}
    for number, order in enumerate(itertools.permutations(hours)):
        t, parts = 0, []
        for job in order:
            if t < 8 and t + hours[job] > 6:
                t = max(t, 8)
            parts.append(f"{job} {t}-{t + hours[job]}")
            t += hours[job]
        lines.append(f"Order {number + 1}: {', '.join(parts)}; it ends at {t}.")
    return "\n".join(lines[:400])


def _division() -> str:
    rest, lines = 1, []
    for i in range(1, 900):
        digit, rest_new = divmod(rest * 10, 983)
        lines.append(
            f"Step {i}: {rest} times 10 is {rest * 10}, over 983 gives {digit}, rest {rest_new}."
        )
        rest = rest_new
    return "\n".join(lines)


def _code() -> str:
    rng = random.Random(9)
    parts = []
    for i in range(220):
        a, b = rng.choice(_NOUNS), rng.choice(_NOUNS)
        parts.append(
            f"def {rng.choice(_VERBS)}_{a}_{i}({b}, limit={rng.randrange(999)}):\n"
            f"    if {b} > limit * {rng.randrange(99)}:\n"
            f"        raise ValueError('{a} {i} too large')\n"
            f"    return {b} {rng.choice('+-*')} {rng.randrange(1000)}\n"
        )
    return "\n".join(parts)


def _revisits() -> str:
    rng = random.Random(4)
    facts = [
        f"the {rng.choice(_NOUNS)} {rng.choice(_VERBS)} the {rng.choice(_NOUNS)}" for _ in range(40)
    ]
    out = []
    for i in range(140):
        known = rng.sample(facts, 2)
        out.append(
            f"We know that {known[0]} and that {known[1]}. {honest_words(26, seed=500 + i)} "
            f"Hence {rng.choice(_NOUNS)} number {i} is settled."
        )
    return " ".join(out)
