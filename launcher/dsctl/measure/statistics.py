"""The statistics of measurements. Pure; every random draw is seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from dsctl.model.base import Value

DRAWS = 4000


class Interval(Value):
    """An estimate with a bootstrap interval."""

    estimate: float
    low: float
    high: float
    level: float = 0.95

    def excludes(self, value: float) -> bool:
        """Whether the value lies outside."""
        return not self.low <= value <= self.high


class Spread(Value):
    """Repeated measurements: mean and sample standard deviation (0 for a single one)."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of some values; None of none."""
        if not values:
            return None
        return cls(mean=fmean(values), sd=stdev(values) if len(values) > 1 else 0.0, n=len(values))


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile by linear interpolation (Hyndman and Fan type 7).

    Raises:
        ValueError: no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap (Efron 1979) of a statistic of independent values."""
    rng = random.Random(seed)
    n = len(values)
    found = sorted(statistic([values[rng.randrange(n)] for _ in range(n)]) for _ in range(draws))
    tail = (1 - level) / 2
    return Interval(
        estimate=statistic(values),
        low=quantile(found, tail),
        high=quantile(found, 1 - tail),
        level=level,
    )


def bootstrap_mean(values: Sequence[float], *, level: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the mean."""
    return bootstrap(values, fmean, level=level, seed=seed)


def paired_ratio(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Interval:
    """Geometric mean of b/a over pairs, with its bootstrap interval (pairs are redrawn whole).

    Raises:
        ValueError: not pairs of positive numbers.
    """
    if len(a) != len(b) or not a or min(*a, *b) <= 0:
        raise ValueError("a ratio needs pairs of positive numbers")
    logs = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    mean = bootstrap_mean(logs, seed=seed)
    return Interval(
        estimate=math.exp(mean.estimate), low=math.exp(mean.low), high=math.exp(mean.high)
    )
