"""Two arms: interleaved, and a faulty draft found over HTTP."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dsctl.bench.ab import AbSpec, diverges, run_ab
from dsctl.bench.arms import Arm, parse_arm, spec_preset
from dsctl.errors import ConfigError
from tests.launcher.bench.samplers import Model
from tests.support.endpoint import Endpoint, Reply
from tests.support.endpoint.command import main
from tests.support.moments import in_a_quiet_moment

MODEL = Model(7)


def sampler(verification: str, gap_s: float, seed: int) -> Any:
    """An endpoint whose answers at temperature 1 come from that verification."""
    rng = random.Random(seed)

    def reply(body: dict[str, Any]) -> Reply:
        count = body["max_tokens"]
        if "messages" not in body:
            return Reply(fault="refuse")
        content = body["messages"][-1]["content"]
        start = sum(content.encode()) % 40
        if body.get("temperature") == 1:
            tokens = getattr(MODEL, verification)(rng, start, count)
        elif body.get("temperature") == 0:
            tokens = MODEL.plain(random.Random(start), start, count)
        else:
            tokens = tuple(str(i) for i in range(count))
            return Reply(tuple(f" {t}" for t in tokens), gap_s=gap_s, ttft_s=0.01)
        logprobs = tuple(
            {"token": t, "logprob": MODEL.logprob(int(before), (t,))}
            for before, t in zip((str(start), *tokens), tokens, strict=False)
        )
        return Reply(tuple(f" {t}" for t in tokens), logprobs=logprobs)

    return reply


def run(verification: str) -> Any:
    spec = AbSpec(prefill=20, decode=30, pairs=4, draws=50, draw_tokens=8, greedy_tokens=8)
    order: list[str] = []
    with (
        Endpoint(sampler("plain", 0.008, 1)) as a,
        Endpoint(sampler(verification, 0.004, 2)) as b,
    ):
        found = run_ab(Arm("A", endpoint=a.url), Arm("B", endpoint=b.url), spec, say=order.append)
    return found, order


@in_a_quiet_moment()
def test_an_approximate_draft_is_faster_and_found_out() -> None:
    found, order = run("approximate")
    assert [line[-1] for line in order[:8]] == list("ABBAABBA")
    assert found.decode.low > 1.5
    assert found.decode.estimate == pytest.approx(2.0, rel=0.15)
    assert found.greedy.equal == found.greedy.prompts  # greedy answers do not see the fault
    assert found.answers_differ


@in_a_quiet_moment()
def test_a_lossless_draft_is_faster_and_passes() -> None:
    found, _ = run("lossless")
    assert found.decode.low > 1.5
    assert not found.answers_differ


def test_where_two_answers_part() -> None:
    assert diverges("abc", "abc") is None
    assert diverges("abc", "abd") == 2
    assert diverges("abc", "abcd") == 3


def test_arms_by_address_and_by_profile() -> None:
    assert parse_arm("127.0.0.1:8000", "A").is_running
    assert parse_arm("dual96-dspark,draft_tokens=0", "A").overrides == ("draft_tokens=0",)
    assert spec_preset("p")[0].overrides == ("draft_tokens=0",)
    with pytest.raises(ConfigError, match="arm B"):
        parse_arm("profile,draft", "B")


def test_one_arm_is_not_a_comparison(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ab", "http://127.0.0.1:1/v1"]) == 2
    assert "only one arm" in capfd.readouterr().err
