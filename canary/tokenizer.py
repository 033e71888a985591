"""The canary's tokenizer: byte-level BPE of 1,024 entries, with DeepSeek-V4's special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"

SPECIAL = (
    BOS, EOS, PAD, "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>", "<｜deepseek_image｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>",
    "<｜read_url｜>",
    "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>",
)  # fmt: skip
"""Left out of decoded text. The first three have the ids 0, 1, 2, as in the real tokenizer."""

MARKUP = ("<think>", "</think>", "｜DSML｜")
"""One token each, but text: the reasoning and tool-call parsers read them in the answer."""


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train on ``texts``; the same texts in the same order give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # markup that is no special token would otherwise be learned from the texts as letters
    cleaned = (_without_markup(text) for text in texts)
    trainer.vocab_size = VOCABULARY - len(MARKUP)
    tokenizer.train_from_iterator(cleaned, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"{tokenizer.get_vocab_size()} entries instead of {VOCABULARY}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def _without_markup(text: str) -> str:
    for token in (*SPECIAL, *MARKUP):
        text = text.replace(token, "\n")
    return text


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer.json"  # compact: the indented form is three times as long
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
