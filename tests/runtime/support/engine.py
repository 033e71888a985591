"""vLLM in this process, on one tiny model at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Answer:
    """A greedy continuation and how likely the prompt's own tokens were."""

    tokens: list[int]
    prompt_logprobs: list[float]  # of tokens 1.. of the prompt
    cached_tokens: int = 0  # of the prompt, found in the prefix cache


@contextmanager
def engine(checkpoint: Path, **options: Any) -> Iterator[Any]:
    """An offline `LLM` with small settings; ``options`` override them."""
    from vllm import LLM

    settings: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 512 << 20,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
    }
    llm = LLM(str(checkpoint), **(settings | options))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def answers(
    llm: Any, prompts: list[list[int]], new_tokens: int, score: bool = True
) -> list[Answer]:
    """Greedy continuations of token prompts, all in one batch."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False,
        prompt_logprobs=0 if score else None,
    )  # fmt: skip
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
    )
    return [
        Answer(
            list(output.outputs[0].token_ids),
            [
                entry[token].logprob
                for token, entry in zip(
                    output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=False
                )
            ],
            output.num_cached_tokens or 0,
        )
        for output in outputs
    ]


@dataclass(frozen=True)
class Agreement:
    """The engine's answer against the reference, teacher-forced on the engine's tokens."""

    errors: torch.Tensor  # |difference| of the prompt tokens' log-probabilities
    greedy: int  # continuation tokens that are the reference's choice too
    greedy_of: int
    regret: float  # how much likelier, at most, the reference's choice was than the engine's

    @property
    def median(self) -> float:
        return float(self.errors.median())

    @property
    def largest(self) -> float:
        return float(self.errors.max())

    def __str__(self) -> str:
        return (
            f"median {self.median:.4f} mean {float(self.errors.mean()):.4f} "
            f"max {self.largest:.4f} greedy {self.greedy}/{self.greedy_of} "
            f"regret {self.regret:.4f}"
        )


def agreement(answer: Answer, prompt: list[int], logprobs: torch.Tensor) -> Agreement:
    """``logprobs`` [len(prompt) + len(answer.tokens), V] of the reference on prompt + answer."""
    want = logprobs[: len(prompt) - 1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
    errors = (torch.tensor(answer.prompt_logprobs, dtype=torch.float64) - want).abs()
    after = logprobs[len(prompt) - 1 : -1]
    taken = torch.tensor(answer.tokens).unsqueeze(1)
    regret = after.max(dim=-1).values - after.gather(1, taken).squeeze(1)
    same = int((regret == 0).sum())
    return Agreement(errors, same, len(answer.tokens), float(regret.max()))
