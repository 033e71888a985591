"""Real vLLM serving an FP8 + FP4 DeepSeek-V4 on this CPU, against transformers in fp32.

Where a model makes no routing decision (every expert is selected, every entry attended), all that
may differ is rounding: the bound is tight. Where it routes, a tie that falls the other way moves a
token far, so what is bounded is the median. The controls break one thing and must fail the bound.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.support.engine import Agreement, Answer, agreement, answers, engine
from tests.runtime.support.reference import logprobs, with_fp8_caches
from tests.runtime.support.tiny import TinyShape, build

pytestmark = pytest.mark.engine

TIGHT = 0.1
"""Largest |difference| of a log-probability where nothing is decided; also the most that a greedy
token may be less likely than the best (two nearly equal ones may change places)."""

MEDIAN = 0.025
"""Median |difference| where experts and entries are chosen."""


def prompt_of(tokens: int, seed: int = 1) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(2, 512) for _ in range(tokens)]


@dataclass
class Served:
    """A tiny model: its checkpoint, and its reference."""

    checkpoint: Path
    reference: Any

    def judge(self, prompt: list[int], answer: Answer) -> Agreement:
        if not answer.prompt_logprobs:
            answer = Answer(answer.tokens, [0.0] * (len(prompt) - 1))
        return agreement(answer, prompt, logprobs(self.reference, prompt + answer.tokens))


def served(shape: TinyShape, directory: Path) -> Served:
    return Served(directory, with_fp8_caches(build(shape, directory)))


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Every expert and every compressed entry is selected; the clamp of the experts bites."""
    shape = TinyShape(experts=4, experts_per_token=4, index_topk=512, swiglu_limit=1.0)
    return served(shape, tmp_path_factory.mktemp("undecided"))


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Two of eight experts, 64 of up to 300 compressed entries; one hash layer."""
    return served(TinyShape(), tmp_path_factory.mktemp("deciding"))


@pytest.fixture(scope="module")
def undecided_engine(plugin_path: Path, undecided: Served) -> Iterator[Any]:
    with engine(undecided.checkpoint) as llm:
        yield llm


PROMPT = prompt_of(1200)


def test_where_nothing_is_decided_every_logprob_and_every_greedy_token_agrees(
    undecided: Served, undecided_engine: Any
) -> None:
    result = undecided.judge(PROMPT, answers(undecided_engine, [PROMPT], 40)[0])
    assert result.largest <= TIGHT, result
    assert (result.greedy, result.greedy_of) == (40, 40)


def test_prompts_of_any_length_in_one_batch_agree_too(
    undecided: Served, undecided_engine: Any
) -> None:
    prompts = [prompt_of(length, seed=length) for length in (2, 5, 127, 128, 129, 300)]
    for prompt, answer in zip(prompts, answers(undecided_engine, prompts, 12), strict=True):
        result = undecided.judge(prompt, answer)
        assert result.largest <= TIGHT, f"{len(prompt)} tokens: {result}"
        assert result.regret <= TIGHT, f"{len(prompt)} tokens: {result}"


def test_control_an_output_that_is_not_turned_back_is_noticed(
    undecided: Served, undecided_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsruntime.cpu.ops import query_key

    rotate = query_key.rotate_tail

    def forgetful(x: Any, positions: Any, table: Any, *, inverse: bool = False) -> Any:
        return x if inverse else rotate(x, positions, table)

    monkeypatch.setattr(query_key, "rotate_tail", forgetful)
    result = undecided.judge(PROMPT, answers(undecided_engine, [PROMPT], 40)[0])
    assert result.largest > TIGHT, result
    assert result.median > MEDIAN, result


def test_a_prompt_in_chunks_and_a_prompt_from_the_cache_agree(
    plugin_path: Path, undecided: Served
) -> None:
    prompts = [prompt_of(700, seed=7), prompt_of(520, seed=8)]
    with engine(
        undecided.checkpoint, max_num_batched_tokens=256, enable_prefix_caching=True
    ) as llm:
        config = llm.llm_engine.vllm_config
        assert config.scheduler_config.enable_chunked_prefill
        assert config.scheduler_config.max_num_batched_tokens == 256
        chunked = answers(llm, prompts, 12)
        for prompt, answer in zip(prompts, chunked, strict=True):
            result = undecided.judge(prompt, answer)
            assert result.largest <= TIGHT, result
            assert result.regret <= TIGHT, result
        again = answers(llm, prompts, 12, score=False)
        assert [answer.tokens for answer in again] == [answer.tokens for answer in chunked]
        assert all(answer.cached_tokens >= 256 for answer in again)


def test_where_experts_and_entries_are_chosen_the_median_agrees_and_controls_do_not(
    plugin_path: Path, deciding: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsruntime.cpu.ops import routing

    with engine(deciding.checkpoint) as llm:
        result = deciding.judge(PROMPT, answers(llm, [PROMPT], 20)[0])
        assert result.median <= MEDIAN, result
        assert result.greedy >= 16, result

        scores = routing._scores

        def first_k(logits: torch.Tensor, scoring_func: str) -> torch.Tensor:
            """Scores under which the first experts always win, their weights kept."""
            order = torch.arange(logits.shape[1], 0, -1.0)
            return scores(logits, scoring_func) + order if logits.shape[1] == 8 else scores(
                logits, scoring_func
            )  # fmt: skip

        monkeypatch.setattr(routing, "_scores", first_k)
        broken = deciding.judge(PROMPT, answers(llm, [PROMPT], 20)[0])
        assert broken.median > MEDIAN, broken


@pytest.mark.slow
def test_drafted_tokens_change_no_answer(plugin_path: Path, undecided: Served) -> None:
    """One draft token is what vLLM's own CPU indexer dies on."""
    pattern = prompt_of(37, seed=5)
    prompts = [(pattern * 12)[:400], prompt_of(150, seed=6)]
    draft = {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 3}
    with engine(undecided.checkpoint, speculative_config=draft) as llm:
        drafted = answers(llm, prompts, 24, score=False)
    for prompt, answer in zip(prompts, drafted, strict=True):
        result = undecided.judge(prompt, answer)
        assert result.regret <= TIGHT, result
