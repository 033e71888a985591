"""The canary in the repository: whole, small, and right."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the engine's environment")
pytest.importorskip("transformers", reason="needs the engine's environment")

from transformers import DeepseekV4ForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from canary.data import Sample, read_samples, read_texts  # noqa: E402
from canary.evaluate import ask, canary, generate, tokenizer_of  # noqa: E402
from canary.tokenizer import MARKUP, SPECIAL, build_tokenizer  # noqa: E402

CANARY = Path(__file__).parents[2] / "canary"
MODEL = CANARY / "model"
MARGIN = 0.95  # of the least probable token of any answer, with an FP8 cache


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_of(MODEL)


@pytest.fixture(scope="module")
def samples(tokenizer: PreTrainedTokenizerFast) -> list[Sample]:
    return read_samples(tokenizer)


@pytest.fixture(scope="module")
def model() -> Iterator[DeepseekV4ForCausalLM]:
    with canary(MODEL) as loaded:
        yield loaded


def test_all_its_files_stay_below_16_mb() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 16_000_000


def test_the_shard_is_whole_and_has_the_shapes_of_the_configuration() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    shard = MODEL / "model.safetensors"
    with shard.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__")
    assert shard.stat().st_size == 8 + length + max(t["data_offsets"][1] for t in header.values())

    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    last = f"layers.{config['num_hidden_layers'] - 1}"
    experts = config["n_routed_experts"]
    assert experts >= 8
    assert config["num_experts_per_tok"] < experts
    assert header[f"{last}.ffn.experts.{experts - 1}.w1.weight"]["shape"] == [width, hidden // 2]
    assert header[f"{last}.ffn.experts.{experts - 1}.w1.scale"]["shape"] == [width, hidden // 32]
    assert header[f"{last}.ffn.experts.{experts - 1}.w2.weight"]["shape"] == [hidden, width // 2]
    assert f"{last}.ffn.experts.{experts}.w1.weight" not in header
    assert header["embed.weight"]["shape"] == [config["vocab_size"], hidden]
    assert header[f"{last}.attn.wkv.weight"]["shape"] == [512, hidden]
    assert set(config["compress_ratios"]) == {0, 4, 128}


def test_special_tokens_are_one_token_each(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in (*SPECIAL, *MARKUP):
        assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 1
    config = json.loads((MODEL / "config.json").read_text())
    assert tokenizer.bos_token_id == config["bos_token_id"] == 0
    assert tokenizer.eos_token_id == config["eos_token_id"] == 1
    assert len(tokenizer) == config["vocab_size"]


def test_markup_that_the_parsers_read_survives_decoding(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    text = "<think>so</think>" + '<｜DSML｜invoke name="f">'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", ["", " ", "größer, 金丝雀\n\t\x00", "🐤" * 3, "12 34.5"])
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_the_tokenizer_is_the_one_its_texts_make(tokenizer: PreTrainedTokenizerFast) -> None:
    again = build_tokenizer(text["prompt"] + text["completion"] for text in read_texts())
    assert again.get_vocab() == tokenizer.get_vocab()


def test_prompts_and_questions_are_the_same_set() -> None:
    yaml = pytest.importorskip("yaml")
    known = yaml.safe_load((CANARY / "questions.yaml").read_text(encoding="utf-8"))
    asked = {entry["id"]: entry for entry in (*known["questions"], *known["completions"])}
    rendered = {text["id"]: text for text in read_texts()}
    assert list(asked) == list(rendered)
    for name, text in rendered.items():
        assert asked[name]["expected"] in text["completion"], name
        last = asked[name].get("messages", [{"content": asked[name].get("prompt")}])[-1]
        assert last["content"] in text["prompt"], name
    assert {text["kind"] for text in rendered.values()} == {
        "plain", "thinking", "tool", "completion",
    }  # fmt: skip


def test_every_answer_is_right_with_room_to_spare(
    model: DeepseekV4ForCausalLM, samples: list[Sample]
) -> None:
    outcomes = [ask(model, sample) for sample in samples]
    assert [outcome.id for outcome in outcomes if not outcome.right] == []
    assert [outcome.id for outcome in outcomes if outcome.probability < MARGIN] == []


@pytest.mark.parametrize("name", ["identity", "recall-cobalt", "think-sum", "tool-forecast"])
def test_token_by_token_gives_the_same_answer(
    model: DeepseekV4ForCausalLM, samples: list[Sample], name: str
) -> None:
    sample = next(sample for sample in samples if sample.id == name)
    assert generate(model, sample) == sample.completion


@pytest.mark.parametrize("damage", ["zero", "swapped"])
def test_wrong_experts_give_wrong_answers(damage: str, samples: list[Sample]) -> None:
    with canary(MODEL, damage) as damaged:
        right = sum(ask(damaged, sample).right for sample in samples)
    assert right < len(samples) * 0.6
