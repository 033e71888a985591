"""The questions as token sequences: what training reads and evaluation asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts.json"
IGNORED = -100


@dataclass(frozen=True)
class Sample:
    """One question: the tokens the engine feeds the model, and those that must come out."""

    id: str
    kind: str
    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.completion)


def read_texts(path: Path = PROMPTS) -> list[dict[str, str]]:
    """The rendered questions: {id, kind, prompt, completion}."""
    texts: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return texts


def read_samples(tokenizer: PreTrainedTokenizerFast, path: Path = PROMPTS) -> list[Sample]:
    """The rendered questions, tokenized."""

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return [
        Sample(text["id"], text["kind"], tokens(text["prompt"]), tokens(text["completion"]))
        for text in read_texts(path)
    ]


def batch(samples: list[Sample], pad: int) -> tuple[Tensor, Tensor]:
    """Samples padded on the right.

    Returns:
        tokens [B, S] int64; labels [B, S], the token that must follow, -100 where none is asked.
    """
    longest = max(sample.length for sample in samples)
    tokens = torch.full((len(samples), longest), pad)
    labels = torch.full((len(samples), longest), IGNORED)
    for row, sample in enumerate(samples):
        tokens[row, : sample.length] = torch.tensor(sample.prompt + sample.completion)
        start = len(sample.prompt) - 1
        labels[row, start : sample.length - 1] = torch.tensor(sample.completion)
    return tokens, labels
