"""Loops of every kind are confirmed; long honest reasoning never is."""

from __future__ import annotations

import pytest

from dsctl.quality.loops import LoopKind, LoopWatch, detect_loop
from tests.launcher.quality.texts import honest_texts, honest_words, looping_texts


@pytest.mark.parametrize("name", sorted(looping_texts()))
def test_a_loop_is_confirmed(name: str) -> None:
    verdict = detect_loop(looping_texts()[name])
    assert verdict.kind is LoopKind.CONFIRMED, verdict


@pytest.mark.parametrize("name", sorted(honest_texts()))
def test_long_honest_reasoning_is_not(name: str) -> None:
    verdict = detect_loop(honest_texts()[name])
    assert verdict.kind is LoopKind.NONE, verdict


def test_honest_reasoning_is_clean_at_every_length_as_it_streams() -> None:
    for name, text in honest_texts().items():
        watch = LoopWatch(every_chars=500)
        for start in range(0, len(text), 37):
            assert watch.add(text[start : start + 37]) is None, name


def test_a_loop_is_seen_while_it_streams_and_long_before_the_limit() -> None:
    text = honest_words(600, seed=3) + looping_texts()["exact paragraph"]
    watch, seen = LoopWatch(), None
    for start in range(0, len(text), 50):
        if watch.add(text[start : start + 50]) is not None:
            seen = start
            break
    assert seen is not None
    assert seen < len(text) * 0.8


def test_the_start_of_the_loop_is_where_it_begins() -> None:
    honest = honest_words(500, seed=5)
    verdict = detect_loop(honest + " " + "so we must look at the first case again. " * 40)
    assert verdict.kind is LoopKind.CONFIRMED
    assert verdict.period_words == 9
    assert verdict.start is not None
    assert abs(verdict.start - len(honest)) < 60


def test_a_loop_that_was_left_is_no_loop() -> None:
    text = "check it again now. " * 60 + honest_words(1500, seed=7)
    assert detect_loop(text).kind is LoopKind.NONE


def test_an_empty_text_and_a_short_one_are_no_loops() -> None:
    for text in ("", " ", "yes", "no no no no", "1 2 3 4 5 6 7 8", "-" * 80, "ha " * 20):
        assert detect_loop(text).kind is LoopKind.NONE
