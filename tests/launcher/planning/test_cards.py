"""Which cards an engine takes: those that suit, and the first ones where too few do."""

from __future__ import annotations

from pathlib import Path

from dsctl.engine import containers
from dsctl.host.collect import collect
from dsctl.model.facts import Gpu
from dsctl.planning.cards import chosen, visible
from dsctl.planning.catalog import load_profile

ONE = load_profile("single96-resident").hardware
TWO = load_profile("dual96-native").hardware
LABEL = 97_887 << 20


def gpu(index: int, *, memory: int | None = LABEL, major: int | None = 12) -> Gpu:
    capability = None if major is None else (major, 0)
    return Gpu(index=index, compute_capability=capability, memory_total_bytes=memory)


SMALL, OLD = gpu(0, memory=4 << 30), gpu(0, major=8)


def test_a_card_that_is_too_small_or_too_old_is_passed_over() -> None:
    for other in (SMALL, OLD):
        assert chosen(ONE, [other, gpu(1)]) == (gpu(1),)
        assert visible(TWO, [other, gpu(1), gpu(2), gpu(3)]) == "1,2"


def test_where_too_few_suit_it_is_the_first_ones() -> None:
    assert chosen(TWO, [SMALL, gpu(1)]) == (SMALL, gpu(1))
    assert chosen(ONE, [SMALL, OLD]) == (SMALL,)
    assert visible(ONE, []) is None


def test_what_a_card_does_not_tell_speaks_against_nothing() -> None:
    assert visible(ONE, [gpu(0, memory=None, major=None), gpu(1)]) == "0"


def test_a_profile_for_the_cpu_takes_none() -> None:
    assert visible(load_profile("cpu-canary").hardware, [gpu(0)]) is None


def test_containers_get_the_card_that_suits_by_its_uuid() -> None:
    facts = collect(Path(__file__).parents[2] / "hosts" / "display-card")
    assert containers.cards(load_profile("single96-resident"), facts) == (facts.gpus[1].uuid,)
