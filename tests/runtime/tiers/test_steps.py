"""Steps over real packs: repeated, streamed or gated, the sums are those of resident experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsruntime.codec.layout import Correction
from dsruntime.experts.compute import routed_sum
from dsruntime.pack.reader import PackReader
from dsruntime.tiers.agreement import Alone
from dsruntime.tiers.base import Bases
from dsruntime.tiers.base_settings import BaseSettings
from dsruntime.tiers.policy import Fixed
from dsruntime.tiers.steps import Steps
from dsruntime.tiers.store import TierStore

LAYERS, EXPERTS, HIDDEN, TOP = 4, 8, 256, 2
ROW_SIZE = 55_296


class Stack:
    """The canary's expert layers alone, each routed by what the ones before have made."""

    def __init__(self, reader: PackReader, experts: str, given: BaseSettings) -> None:
        bases = Bases(reader, experts, given)
        self.store = TierStore(reader, Fixed(), torch.float32, bases=bases)
        self.steps = Steps(self.store, given, Alone())
        self.layers = [self.store.layer(number) for number in range(LAYERS)]
        self.routers = torch.randn(
            LAYERS, HIDDEN, EXPERTS, generator=torch.Generator().manual_seed(5)
        )
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        for number, weights in enumerate(self.layers):
            gate, ids = (x @ self.routers[number]).softmax(-1).topk(TOP)
            asked = ids.to(torch.int32).numpy()
            self.store.record(number, asked)
            admitted = torch.from_numpy(np.ascontiguousarray(weights.admit(asked)))
            x = x + routed_sum(x, gate, admitted, weights, 10.0)
            x = x / x.square().mean(-1, keepdim=True).sqrt()
        return x

    def step(self, x: torch.Tensor, *, decode: bool = True, surety: float = 1.0) -> torch.Tensor:
        self.steps.begin(len(x), decode=decode)
        found = self.steps.run(lambda: self.forward(x), lambda _: surety)
        report = self.steps.end()
        assert not report.wrong
        assert not report.left_out
        self.store.step()
        return found

    def close(self) -> None:
        self.store.close()
        self.store.bases.close()


def cached(rows: int, **more: object) -> BaseSettings:
    given = {"base_cache_gib": (rows + 0.5) * ROW_SIZE / 2**30, **more}
    return BaseSettings.model_validate(given)


Open = Callable[..., Stack]


@pytest.fixture
def stack(canary_packs: dict[Correction, Path]) -> Iterator[Open]:
    made: list[tuple[Stack, PackReader]] = []

    def open_stack(
        experts: str, given: BaseSettings, coding: Correction = Correction.PLAIN
    ) -> Stack:
        reader = PackReader(canary_packs[coding])
        made.append((Stack(reader, experts, given), reader))
        return made[-1][0]

    yield open_stack
    for one, reader in made:
        one.close()
        reader.close()


def inputs(seed: int, tokens: int) -> torch.Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(4, 40),
    arena=st.integers(0, 12),
    mapped=st.sets(st.integers(0, 3), max_size=2),
    rounds=st.integers(1, 6),
    steps=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6),
)
def test_any_cache_any_rounds_and_any_order_of_steps_give_the_sums_of_resident_experts(
    stack: Open, rows: int, arena: int, mapped: set[int], rounds: int,
    steps: list[tuple[int, bool]],
) -> None:  # fmt: skip
    resident = stack("w2-resident", BaseSettings())
    given = cached(
        rows, arena_gib=arena * ROW_SIZE / 2**30, mapped_layers=list(mapped), replay_rounds=rounds
    )
    small = stack("w2-cache", given)
    for seed, (tokens, decode) in enumerate(steps):
        x = inputs(seed, tokens)
        assert torch.equal(small.step(x, decode=decode), resident.step(x, decode=decode))
    counted = small.steps.snapshot()
    assert counted.replays + len(steps) == small.passes
    assert small.passes <= len(steps) * (rounds + 2)
    assert counted.degraded_steps == counted.unreadable == 0
    assert small.store.counters.uses == sum(tokens for tokens, _ in steps) * LAYERS * TOP


def test_a_step_that_fits_takes_no_pass_beyond_its_first_the_second_time(stack: Open) -> None:
    small = stack("w2-cache", cached(40))
    x = inputs(1, 2)
    small.step(x)
    first = small.passes
    assert 1 < first <= LAYERS + 1
    small.step(x)
    assert small.passes == first + 1
    assert small.steps.snapshot().replayed_steps == 1
    assert small.steps.snapshot().rescues == 0


def test_a_step_that_cannot_fit_is_streamed_at_once(stack: Open) -> None:
    small = stack("w2-cache", cached(4))
    small.step(inputs(1, 4))
    assert small.passes == 2
    assert small.steps.snapshot().rescues == 1


@pytest.mark.parametrize("coding", [Correction.SPLIT, Correction.PLAIN])
def test_a_gated_step_over_a_cache_is_that_of_corrected_resident_experts(
    stack: Open, coding: Correction
) -> None:
    full = stack("w2-resident", BaseSettings(), coding)
    full.store.allocate(LAYERS * EXPERTS)
    full.store.preload(range(LAYERS * EXPERTS))
    gated = stack("w2-cache", cached(24, gate_threshold=0.5), coding)
    gated.store.allocate(LAYERS * EXPERTS)
    x = inputs(3, 2)
    sure = gated.step(x, surety=0.9)
    assert gated.steps.snapshot().gate_redone == 0
    unsure = gated.step(x, surety=0.1)
    assert not torch.equal(sure, unsure)
    assert torch.equal(unsure, full.step(x))
    counted = gated.steps.snapshot()
    assert (counted.gate_checks, counted.gate_fires, counted.gate_redone) == (2, 1, 1)
    assert counted.gate_corrections == gated.store.counters.promotions > 0


def test_the_gates_budget_and_share_are_kept(stack: Open) -> None:
    gated = stack("w2-resident", BaseSettings(gate_threshold=0.5, gate_budget=3, gate_percent=10))
    gated.store.allocate(LAYERS * EXPERTS)
    for seed in range(12):
        gated.step(inputs(seed, 2), surety=0.1)
    counted = gated.steps.snapshot()
    assert counted.gate_checks == counted.gate_fires == 12
    assert counted.gate_redone == 2
    assert counted.gate_refused == 10
    assert counted.gate_corrections == 6


def test_prompts_are_never_gated(stack: Open) -> None:
    gated = stack("w2-resident", BaseSettings(gate_threshold=0.5))
    gated.store.allocate(LAYERS * EXPERTS)
    gated.step(inputs(0, 5), decode=False, surety=0.0)
    assert gated.passes == 1
    assert gated.steps.snapshot().gate_checks == 0


def test_an_approximate_step_is_accepted_within_its_tolerance_and_told(stack: Open) -> None:
    small = stack("w2-cache", cached(40, replay="approximate", replay_tolerance=64))
    x = inputs(1, 2)
    small.steps.begin(2, decode=True)
    small.steps.run(lambda: small.forward(x), lambda _: 1.0)
    report = small.steps.end()
    counted = small.steps.snapshot()
    assert small.passes == 1
    assert counted.degraded_steps == 1
    assert dict(report.left_out).keys() == {0, 1}
    assert counted.left_out == counted.misses == counted.fetched_rows
    strict = stack("w2-cache", cached(40, replay="approximate", replay_tolerance=1))
    resident = stack("w2-resident", BaseSettings())
    assert strict.step(x) is not None
    assert torch.equal(strict.step(x), resident.step(x))
