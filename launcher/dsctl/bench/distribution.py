"""Do two samplers draw from the same distribution? Catches drafts that are verified approximately.

Rejection sampling of drafts (Leviathan et al. 2023) leaves the distribution of the target model
untouched; accepting a draft because it is merely plausible does not, at the same speed and nearly
the same perplexity. The test draws continuations of fixed prompts at temperature 1 from both arms
and looks at three things at once:

- how often each token stands at each position (G = 2 sum O ln(O / E));
- how often each token follows each token, anywhere (the same);
- how surprising the tokens are to the target (their log-probability, where the server tells it):
  accepting what is plausible makes text less surprising than the model's own samples.

Each is standardised by its own permutation distribution and the largest counts. Labels of the arms
are shuffled within each prompt, whole continuations at a time, so the error rate is the stated one
whatever the tokens' distribution is (a permutation test, Fisher 1935; maxima as Westfall and Young
1993).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

from dsctl.model.base import Value

Draws = Sequence[Sequence[str]]
#: Log-probability of each draw's tokens, summed; one row per prompt.
Surprisals = Sequence[Sequence[float]]
_Key = tuple[Any, ...]

#: Tokens seen less often than this in both arms together are counted as one.
RARE = 10
_FEATURES = ("tokens by position", "tokens by the token before", "surprise")


class DistributionTest(Value):
    """The outcome. `excess`: the statistic in standard deviations of its permutation distribution;
    `led_by`: what differs most; `positions`: where, 1-based, the worst first."""

    p_value: float
    excess: float
    led_by: str
    alpha: float
    prompts: int
    draws_per_arm: int
    positions: tuple[int, ...]

    @property
    def same(self) -> bool:
        """No difference was found at `alpha`; with few draws that says little."""
        return self.p_value > self.alpha


def compare_draws(
    a: Sequence[Draws],
    b: Sequence[Draws],
    *,
    surprisals: tuple[Surprisals, Surprisals] | None = None,
    alpha: float = 0.01,
    permutations: int = 500,
    seed: int = 0,
) -> DistributionTest:
    """Test continuations (tokens) of arm A against arm B, prompt by prompt.

    Raises:
        ValueError: no prompts, or different numbers of them.
    """
    if not a or len(a) != len(b):
        raise ValueError("both arms need draws of the same prompts")
    rng = random.Random(seed)
    sample = _Sample(a, b, surprisals)
    labels = sample.labels()
    drawn = [sample.features(labels)]
    for _ in range(permutations):
        drawn.append(sample.features(sample.shuffled(rng)))
    # The observed labelling is one of the equally likely ones, so it belongs to the scale too.
    scores = _standardised(drawn)
    observed = max(scores[0])
    hits = sum(max(row) >= observed - 1e-12 for row in scores)
    return DistributionTest(
        p_value=hits / len(scores),
        excess=observed,
        led_by=_FEATURES[scores[0].index(observed)],
        alpha=alpha,
        prompts=len(a),
        draws_per_arm=min(len(x) for x in (*a, *b)),
        positions=sample.worst_positions(labels),
    )


def _standardised(drawn: list[list[float]]) -> list[list[float]]:
    scales = []
    for column in zip(*drawn, strict=True):
        mean, sd = fmean(column), pstdev(column)
        scales.append((mean, sd if sd > 1e-12 else math.inf))
    return [
        [(value - mean) / sd for value, (mean, sd) in zip(row, scales, strict=True)]
        for row in drawn
    ]


class _Coded:
    """Keys of each draw as small integers, rare keys merged, with totals for fast recounting."""

    def __init__(self, rows: list[list[_Key]], merge: Callable[[_Key], _Key]) -> None:
        seen = Counter(key for row in rows for key in row)
        names: dict[_Key, int] = {}
        self._rows = [
            [names.setdefault(k if seen[k] >= RARE else merge(k), len(names)) for k in row]
            for row in rows
        ]
        self.keys = list(names)
        self.totals = [0] * len(names)
        for codes in self._rows:
            for code in codes:
                self.totals[code] += 1

    def terms(self, chosen: Sequence[int], share: float) -> list[float]:
        """Each key's part of G when the draws `chosen` are arm A's."""
        counts = [0] * len(self.totals)
        for i in chosen:
            for code in self._rows[i]:
                counts[code] += 1
        return [_term(count, of, share) for count, of in zip(counts, self.totals, strict=True)]


def _term(count: int, of: int, share: float) -> float:
    """A key's part of G: it was drawn `of` times, `count` times by arm A."""
    other, total = of - count, 0.0
    if count:
        total += count * math.log(count / (of * share))
    if other:
        total += other * math.log(other / (of * (1 - share)))
    return 2 * total


class _Sample:
    """All draws; those of a prompt lie side by side, arm A's first."""

    def __init__(
        self,
        a: Sequence[Draws],
        b: Sequence[Draws],
        surprisals: tuple[Surprisals, Surprisals] | None,
    ) -> None:
        self._sizes = [(len(x), len(y)) for x, y in zip(a, b, strict=True)]
        both = zip(a, b, strict=True)
        draws = [(n, tuple(draw)) for n, pair in enumerate(both) for arm in pair for draw in arm]
        self._positions = _Coded(
            [[(n, i, token) for i, token in enumerate(draw)] for n, draw in draws],
            merge=lambda key: (*key[:2], None),
        )
        self._pairs = _Coded(
            [[(draw[i - 1] if i else n, draw[i]) for i in range(len(draw))] for n, draw in draws],
            merge=lambda key: (key[0], None),
        )
        self._surprise = [0.0] * len(draws)
        if surprisals is not None:
            flat = []
            for x, y in zip(*surprisals, strict=True):
                mean = fmean([*x, *y]) if [*x, *y] else 0.0
                flat += [value - mean for value in (*x, *y)]
            self._surprise = flat if len(flat) == len(draws) else self._surprise

    def labels(self) -> list[bool]:
        """True: drawn by arm A."""
        return [label for n, m in self._sizes for label in [True] * n + [False] * m]

    def shuffled(self, rng: random.Random) -> list[bool]:
        """Labels shuffled within each prompt."""
        labels: list[bool] = []
        for n, m in self._sizes:
            block = [True] * n + [False] * m
            rng.shuffle(block)
            labels += block
        return labels

    def features(self, labels: Sequence[bool]) -> list[float]:
        """The three statistics for a labelling."""
        chosen, share = _chosen(labels)
        mine = sum(self._surprise[i] for i in chosen)
        rest = sum(self._surprise) - mine
        others = max(1, len(labels) - len(chosen))
        return [
            sum(self._positions.terms(chosen, share)),
            sum(self._pairs.terms(chosen, share)),
            abs(mine / max(1, len(chosen)) - rest / others),
        ]

    def worst_positions(self, labels: Sequence[bool]) -> tuple[int, ...]:
        """Positions that differ most, 1-based, the worst first."""
        worst: dict[int, float] = {}
        terms = self._positions.terms(*_chosen(labels))
        for key, term in zip(self._positions.keys, terms, strict=True):
            worst[key[1] + 1] = worst.get(key[1] + 1, 0.0) + term
        return tuple(sorted(worst, key=lambda position: -worst[position])[:3])


def _chosen(labels: Sequence[bool]) -> tuple[list[int], float]:
    chosen = [i for i, label in enumerate(labels) if label]
    return chosen, len(chosen) / len(labels)
