"""Ask the canary everything it knows, through transformers, and print a table with margins.

    python -m canary.evaluate [--model DIR] [--experts stored|two-bit|zero|swapped] [--generate]

Greedy decoding gives the known answer exactly when each of its tokens is the most probable one
after those before it; one forward pass per question shows that, and how probable each was.
``--generate`` decodes for real as well, token by token with transformers' cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DeepseekV4ForCausalLM, PreTrainedTokenizerFast

from canary.data import HERE, IGNORED, Sample, batch, read_samples
from canary.export import load_checkpoint
from canary.formats import two_bit_round
from canary.kv_cache import simulated_cache

EXPERTS = ("stored", "two-bit", "zero", "swapped")


@dataclass(frozen=True)
class Outcome:
    """How surely one question is answered.

    Attributes:
        right: the whole answer is what greedy decoding gives.
        probability: of the least probable token of the answer.
        margin: smallest lead, in logits, of an answer token over the best other one (< 0: wrong).
        agreement: share of the answer's tokens that are the most probable.
    """

    id: str
    kind: str
    tokens: int
    right: bool
    probability: float
    margin: float
    agreement: float


@torch.no_grad()
def ask(model: DeepseekV4ForCausalLM, sample: Sample) -> Outcome:
    """One question, its answer teacher-forced."""
    tokens, labels = batch([sample], pad=0)
    logits = model(tokens, use_cache=False).logits[0].float()
    asked = labels[0] != IGNORED
    logits, answer = logits[asked], labels[0][asked, None]
    own = logits.gather(1, answer)[:, 0]
    other = logits.scatter(1, answer, -torch.inf).amax(dim=1)
    probability = logits.softmax(dim=1).gather(1, answer).min().item()
    lead = own - other
    return Outcome(
        id=sample.id,
        kind=sample.kind,
        tokens=sample.length,
        right=bool((lead > 0).all()),
        probability=probability,
        margin=lead.min().item(),
        agreement=(lead > 0).float().mean().item(),
    )


@torch.no_grad()
def generate(model: DeepseekV4ForCausalLM, sample: Sample) -> tuple[int, ...]:
    """The tokens that greedy decoding gives, with transformers' cache, as long as the answer is."""
    prompt = torch.tensor([sample.prompt])
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=len(sample.completion),
        do_sample=False,
        use_cache=True,
        pad_token_id=2,
        eos_token_id=1,
    )
    return tuple(output[0, prompt.shape[1] :].tolist())


@torch.no_grad()
def damage_experts(model: DeepseekV4ForCausalLM, experts: str) -> None:
    """Change the routed experts in place: ``two-bit``, ``zero``, or ``swapped`` with each other."""
    for layer in model.model.layers:
        for weight in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            if experts == "two-bit":
                weight.copy_(two_bit_round(weight))
            elif experts == "zero":
                weight.zero_()
            elif experts == "swapped":
                weight.copy_(weight.roll(1, dims=0))


@contextmanager
def canary(directory: Path, experts: str = "stored") -> Iterator[DeepseekV4ForCausalLM]:
    """The checkpoint in transformers with an FP8 cache simulated."""
    model = load_checkpoint(directory)
    damage_experts(model, experts)
    with simulated_cache(model):
        yield model


def tokenizer_of(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer beside the weights."""
    return PreTrainedTokenizerFast.from_pretrained(directory)


def main() -> int:
    """Print the table; 0 if every answer is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=HERE / "model")
    parser.add_argument("--experts", choices=EXPERTS, default="stored")
    parser.add_argument("--generate", action="store_true", help="decode token by token as well")
    options = parser.parse_args()
    samples = read_samples(tokenizer_of(options.model))
    outcomes: list[Outcome] = []
    print(f"{'question':<18}{'kind':<12}{'tokens':>6}{'least p':>9}{'margin':>8}  answer")
    with canary(options.model, options.experts) as model:
        for sample in samples:
            outcome = ask(model, sample)
            good = outcome.right
            if options.generate:
                good = good and generate(model, sample) == sample.completion
            outcomes.append(outcome)
            print(
                f"{outcome.id:<18}{outcome.kind:<12}{outcome.tokens:>6}{outcome.probability:>9.4f}"
                f"{outcome.margin:>8.2f}  {'right' if good else 'WRONG'}"
            )
    right = sum(outcome.right for outcome in outcomes)
    agreement = sum(outcome.agreement for outcome in outcomes) / len(outcomes)
    print(
        f"\n{right} of {len(outcomes)} right, {agreement:.1%} of answer tokens, "
        f"least probable token {min(o.probability for o in outcomes):.4f}, "
        f"smallest margin {min(o.margin for o in outcomes):.2f} (experts {options.experts})"
    )
    return 0 if right == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
