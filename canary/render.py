"""Write prompts.json: every question as the very text that vLLM feeds the model.

Needs vLLM (its own encoding code renders the prompts); training and evaluation read the file and
need only torch and transformers:

    python -m canary.render            # writes canary/prompts.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).parent


def render_question(question: dict[str, Any]) -> dict[str, Any]:
    """A chat question -> {id, kind, prompt, completion}, the completion up to the end token."""
    from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
    from vllm.tokenizers.deepseek_v4_encoding import encode_messages, eos_token

    thinking = question["kind"] == "thinking"
    tokenizer = get_deepseek_v4_tokenizer(_any_tokenizer())
    ask = {"tools": question.get("tools"), "thinking": thinking, "tokenize": False}
    prompt = tokenizer.apply_chat_template([*question["messages"]], **ask)
    reply: dict[str, Any] = {"role": "assistant", "content": question["expected"]}
    if thinking:
        reply["reasoning"] = question["expected_reasoning"]
    if call := question.get("expected_tool_call"):
        reply["tool_calls"] = [{"type": "function", "function": call}]
    mode = "thinking" if thinking else "chat"
    turn = encode_messages([{"role": "user", "content": "?"}, reply], thinking_mode=mode)
    opening = encode_messages([{"role": "user", "content": "?"}], thinking_mode=mode)
    completion = turn.removeprefix(opening)
    if completion == turn or not completion.endswith(eos_token):
        raise ValueError(f"{question['id']}: the answer does not continue its prompt")
    return {
        "id": question["id"],
        "kind": question["kind"],
        "prompt": prompt,
        "completion": completion,
    }


def _any_tokenizer() -> Any:
    """Rendering to text uses no vocabulary, only the class."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def main() -> None:
    """Render questions.yaml into prompts.json."""
    from canary.tokenizer import BOS, EOS

    known = yaml.safe_load((HERE / "questions.yaml").read_text(encoding="utf-8"))
    rendered = [render_question(question) for question in known["questions"]]
    for raw in known["completions"]:
        rendered.append(
            {
                "id": raw["id"],
                "kind": "completion",
                "prompt": BOS + raw["prompt"],
                "completion": raw["expected"] + EOS,
            }
        )
    text = json.dumps(rendered, ensure_ascii=False, indent=1)
    (HERE / "prompts.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(rendered)} prompts")


if __name__ == "__main__":
    main()
