"""The canary through `dsctl up` with experts in tiers: resident, cached, mapped, corrected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ROOT, Dsctl, free_port
from tests.support.machine import read_only

pytestmark = pytest.mark.engine

PROMPTS = (
    "The quick brown fox jumps over the lazy dog, and then it says hello to the",
    "Question: what is the capital of France? Answer:",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "Once upon a time there was a",
    "def add(a, b):\n    return",
)
TOKENS = 24
Said = list[tuple[list[str], list[float]]]
"""Tokens and their log-probabilities, prompt by prompt."""
EXPERTS = 32
ROW_GIB = 55_296 / 2**30
"""A base row of the canary in memory; a token of one sequence uses 8 of the 32."""


def knobs(**values: object) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def up(dsctl: Dsctl, **values: object) -> None:
    """Ready, or the test ends here; patient, for a machine that others use too."""
    words = dsctl.up_arguments(*knobs(**values), "--timeout", "840")
    done = dsctl.run(*words, timeout_s=900)
    assert done.returncode == 0, done.stderr


def down(dsctl: Dsctl) -> None:
    assert dsctl.run("down").returncode == 0


def said(dsctl: Dsctl) -> Said:
    """Greedy tokens and their log-probabilities, one prompt after the other."""
    found = []
    for prompt in PROMPTS:
        body = {
            "model": "deepseek-v4-canary", "prompt": prompt, "max_tokens": TOKENS,
            "temperature": 0.0, "logprobs": 1, "ignore_eos": True,
        }  # fmt: skip
        url = f"http://127.0.0.1:{dsctl.port}/v1/completions"
        answer = httpx.post(url, json=body, timeout=180).raise_for_status()
        assert "x-dsruntime-replay" not in answer.headers
        logprobs = answer.json()["choices"][0]["logprobs"]
        found.append((logprobs["tokens"], logprobs["token_logprobs"]))
    return found


def metric(dsctl: Dsctl, name: str) -> float:
    """One figure of the engine's own endpoint."""
    text = httpx.get(f"http://127.0.0.1:{dsctl.port}/metrics", timeout=60).text
    values = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name}{{")]
    assert len(values) == 1, f"{name}: {values}"
    return float(values[0])


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The canary's pack, made as a user makes it; then nobody can write there any more."""
    place = tmp_path_factory.mktemp("tiers")
    build = Dsctl(place, 0).run(
        "pack", "build", "--checkpoint", str(ROOT / "canary/model"), "--out", str(place / "packs")
    )
    assert build.returncode == 0, build.stderr
    (made,) = (place / "packs").glob("pack-*")
    with read_only(made):
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            (made / "probe").touch()
        yield str(made)


@pytest.fixture(scope="module")
def two_bit(pack: str, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What the canary says with all its experts at 2 bits, resident."""
    alone = Dsctl(tmp_path_factory.mktemp("resident"), free_port())
    try:
        up(alone, experts="w2-resident", pack_dir=pack, heat="false")
        assert metric(alone, "dsruntime_base_slots") == 0
        return said(alone)
    finally:
        down(alone)


@pytest.mark.long
def test_a_base_cache_and_mapped_layers_say_what_resident_experts_say(
    dsctl: Dsctl, pack: str, two_bit: Said
) -> None:
    cached: dict[str, Any] = {"experts": "w2-cache", "pack_dir": pack, "heat": "false"}
    up(dsctl, **cached, base_cache_gib=16.2 * ROW_GIB, arena_gib=6.2 * ROW_GIB, replay="strict")
    assert said(dsctl) == two_bit
    assert metric(dsctl, "dsruntime_base_slots") == 14
    assert metric(dsctl, "dsruntime_replayed_steps_total") > 0
    assert metric(dsctl, "dsruntime_replays_total") > 0
    assert metric(dsctl, "dsruntime_arena_hits_total") > 0
    assert metric(dsctl, "dsruntime_degraded_steps_total") == 0
    log = dsctl.run("logs").stdout
    assert "in a cache of 14 slots" in log
    assert "an arena of 6 rows" in log
    down(dsctl)

    up(dsctl, experts="w2-resident", pack_dir=pack, heat="false", mapped_layers="0-2")
    assert said(dsctl) == two_bit
    assert metric(dsctl, "dsruntime_mapped_layers") == 3


@pytest.mark.long
def test_with_every_expert_corrected_the_logits_are_those_of_fp4(
    dsctl: Dsctl, pack: str, two_bit: Said
) -> None:
    up(dsctl)
    fp4 = said(dsctl)
    down(dsctl)

    up(
        dsctl, experts="w2-cache", pack_dir=pack, base_cache_gib=20.2 * ROW_GIB, pool_gib=0.01,
        pool_per_step=EXPERTS, heat="false",
    )  # fmt: skip
    for _ in range(10):
        corrected = said(dsctl)
        if metric(dsctl, "dsruntime_pool_corrected_experts") == EXPERTS:
            break
    assert metric(dsctl, "dsruntime_pool_corrected_experts") == EXPERTS
    corrected = said(dsctl)
    assert [tokens for tokens, _ in corrected] == [tokens for tokens, _ in fp4]
    # the FP4 engine differs from itself in a few tokens: a cached key rounded the other way
    assert distance(corrected, fp4) < 0.1
    assert distance(two_bit, fp4) > 3 * distance(corrected, fp4), "the comparison is blind"


def distance(ours: Said, theirs: Said) -> float:
    """The mean difference of the log-probabilities of their first words, in nats.

    Of the first only: where words differ, what follows them does not compare.
    """
    pairs = [(x[1][0], y[1][0]) for x, y in zip(ours, theirs, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"base_cache_gib": 1e-7}, "base_cache_gib"),
        ({"base_cache_gib": 1, "mapped_layers": "0-9"}, "there is no layer 4"),
        ({}, "'base_cache_gib' is not set"),
    ],
)
def test_a_cache_that_makes_no_sense_is_said_before_anything_is_started(
    dsctl: Dsctl, pack: str, values: dict[str, object], says: str
) -> None:
    done = dsctl.up(*knobs(experts="w2-cache", pack_dir=pack, **values))
    assert done.returncode in (1, 2), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert dsctl.status()["phase"] in (None, "stopped")
