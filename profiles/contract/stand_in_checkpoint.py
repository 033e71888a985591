"""A directory that looks like a checkpoint to configuration code: a config.json and a tokenizer.

The tokenizer knows single bytes and the special tokens that the parsers look up; it encodes nothing
that is ever used.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_SPECIAL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)


def make(config: Path, directory: Path) -> None:
    """Fill `directory` with a copy of `config` and a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    shutil.copy(config, directory / "config.json")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate((*_SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "pad_token": _SPECIAL[2],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(described))
