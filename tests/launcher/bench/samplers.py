"""A small language model with a draft, verified exactly or approximately: a known fault to find.

The target is a Markov chain over 40 tokens; the draft is the same chain, flattened and mixed with
noise. `lossless` is rejection sampling (accept x with min(1, p/q), else draw from the positive part
of p - q), which leaves the target's distribution untouched. `approximate` accepts a drafted token
whenever the target finds it plausible (p >= 0.3 max p), trading exactness for speed.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate

VOCABULARY = 40


class Model:
    """Target and draft distributions by previous token."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.target = [
            _normal([rng.gammavariate(0.35, 1) + 1e-6 for _ in range(VOCABULARY)])
            for _ in range(VOCABULARY)
        ]
        self.draft = [
            _normal([0.8 * p**0.8 + 0.2 / VOCABULARY for p in row]) for row in self.target
        ]

    def plain(self, rng: random.Random, start: int, length: int) -> tuple[str, ...]:
        """Sampled from the target, no draft."""
        return self._walk(start, length, lambda p, q: _draw(rng, p))

    def lossless(self, rng: random.Random, start: int, length: int) -> tuple[str, ...]:
        """Drafted and verified by rejection sampling."""

        def step(p: list[float], q: list[float]) -> int:
            x = _draw(rng, q)
            if rng.random() < min(1.0, p[x] / q[x]):
                return x
            return _draw(rng, _normal([max(0.0, a - b) for a, b in zip(p, q, strict=True)]))

        return self._walk(start, length, step)

    def approximate(self, rng: random.Random, start: int, length: int) -> tuple[str, ...]:
        """Drafted and accepted when plausible: the fault."""

        def step(p: list[float], q: list[float]) -> int:
            x = _draw(rng, q)
            return x if p[x] >= 0.3 * max(p) else _draw(rng, p)

        return self._walk(start, length, step)

    def logprob(self, start: int, tokens: tuple[str, ...]) -> float:
        """The target's log-probability of a continuation."""
        total, now = 0.0, start
        for token in tokens:
            total += math.log(self.target[now][int(token)])
            now = int(token)
        return total

    def _walk(self, start: int, length: int, step: object) -> tuple[str, ...]:
        assert callable(step)
        tokens, now = [], start
        for _ in range(length):
            now = step(self.target[now], self.draft[now])
            tokens.append(str(now))
        return tuple(tokens)


def _normal(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [w / total for w in weights]


def _draw(rng: random.Random, p: list[float]) -> int:
    return rng.choices(range(VOCABULARY), cum_weights=list(accumulate(p)))[0]
