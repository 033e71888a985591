"""The distribution test finds a draft verified approximately, and leaves a lossless one alone."""

from __future__ import annotations

import random

import pytest

from dsctl.bench.distribution import DistributionTest, compare_draws
from tests.launcher.bench.samplers import Model

PROMPTS, DRAWS, LENGTH = 4, 60, 8


def compared(
    verification: str, seed: int, permutations: int = 99, *, logprobs: bool = True
) -> DistributionTest:
    model = Model(7)
    rng = random.Random(seed)
    plain = [[model.plain(rng, p, LENGTH) for _ in range(DRAWS)] for p in range(PROMPTS)]
    sampler = getattr(model, verification)
    other = [[sampler(rng, p, LENGTH) for _ in range(DRAWS)] for p in range(PROMPTS)]
    told = tuple(
        [[model.logprob(p, draw) for draw in draws] for p, draws in enumerate(arm)]
        for arm in (plain, other)
    )
    return compare_draws(
        plain,
        other,
        surprisals=told if logprobs else None,  # type: ignore[arg-type]
        alpha=0.05,
        permutations=permutations,
        seed=seed,
    )


def test_approximate_verification_is_found() -> None:
    found = [compared("approximate", seed) for seed in range(10)]
    assert sum(not test.same for test in found) >= 9
    assert min(test.excess for test in found) > 0


@pytest.mark.parametrize("verification", ["plain", "lossless"])
def test_a_lossless_draft_passes_at_the_stated_error_rate(verification: str) -> None:
    runs = 40
    alarms = sum(not compared(verification, 1000 + seed, 39).same for seed in range(runs))
    # Binomial(40, 0.05): more than 6 alarms has a chance of 0.3 %.
    assert alarms <= 6


def test_the_p_value_of_a_clear_fault_is_the_smallest_possible() -> None:
    a = [[("a", "b")] * 50]
    b = [[("a", "c")] * 50]
    found = compare_draws(a, b, permutations=199)
    assert found.p_value == pytest.approx(1 / 200)
    assert found.positions[0] == 2
    assert compare_draws(a, a, permutations=199).p_value == 1


def test_arms_need_the_same_prompts() -> None:
    with pytest.raises(ValueError, match="same prompts"):
        compare_draws([[("a",)]], [])
