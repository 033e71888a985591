"""Train the canary from nothing and write canary/model.

    python -m canary.train [--steps N] [--out DIR]

Needs torch and transformers only. The forward pass sees what the engine will: weights rounded to
FP8, FP4 and BF16 (gradients pass straight through) and keys through an FP8 cache. Seeds, data and
schedule are fixed; two cores take some minutes (measured in README.md).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from canary.data import HERE, IGNORED, Sample, batch, read_samples, read_texts
from canary.export import export_checkpoint, rounded
from canary.kv_cache import simulated_cache
from canary.tokenizer import VOCABULARY, build_tokenizer, save_tokenizer

SEED = 20261201
STEPS = 480
WARMUP = 30
LEARNING_RATE = 1e-3
BALANCE = 1e-3  # step of the router's correction biases towards equal load
JITTER = 0.01  # noise on those biases: a close routing decision may fall either way in an engine
HARD = 0.5  # weight of the answer tokens that are not known yet, beside all of them
LONG = 75  # tokens from which a question is trained in a batch of its own kind


def canary_config() -> DeepseekV4Config:
    """Real heads (448 + 64), windows, ratios and routing; everything else as small as it goes.

    moe_intermediate_size 256 lets two tensor-parallel ranks keep whole FP8 blocks of 128.
    """
    return DeepseekV4Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        moe_intermediate_size=256,
        num_hidden_layers=4,
        compress_ratios=[0, 4, 128, 4],
        num_hash_layers=1,
        num_attention_heads=4,
        q_lora_rank=128,
        o_lora_rank=128,
        o_groups=2,
        n_routed_experts=8,
        num_experts_per_tok=2,
        index_n_heads=4,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        pad_token_id=2,
        attn_implementation="eager",
        use_cache=False,
    )


@torch.no_grad()
def fresh_model() -> DeepseekV4ForCausalLM:
    """The untrained canary: seeded weights of a scale at which every part has a say."""
    model = DeepseekV4ForCausalLM(canary_config()).float()
    generator = torch.Generator().manual_seed(SEED)

    def normal(tensor: Tensor, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    for name, tensor in model.state_dict().items():
        if name.endswith("tid2eid"):
            count = model.config.n_routed_experts
            for row in tensor:
                row.copy_(torch.randperm(count, generator=generator)[: row.shape[0]])
        elif "norm" in name:
            tensor.fill_(1.0)
        elif name.endswith(("hc.scale", "hc_scale")):
            tensor.fill_(0.5)
        elif name.endswith(("hc.base", "hc_base")):
            normal(tensor, 0.5)  # the four streams must differ from the start
            if tensor.numel() > 4:
                tensor[8:].view(4, 4).diagonal().add_(2.0)
        elif name.endswith(("sinks", "position_bias")):
            normal(tensor, 0.2)
        elif name.endswith("e_score_correction_bias"):
            tensor.zero_()
        elif "embed_tokens" in name:
            normal(tensor, 0.5)
        else:
            normal(tensor, 0.7 / math.sqrt(tensor.shape[-1]))
    return model


class Balancer:
    """Keeps the scored routers' load equal through their correction biases, as DeepSeek does."""

    def __init__(self, model: DeepseekV4ForCausalLM) -> None:
        layers = model.model.layers
        self.gates = [layer.mlp.gate for layer in layers if not layer.mlp.is_hash]
        self.biases = [torch.zeros_like(gate.e_score_correction_bias) for gate in self.gates]
        self.loads = [torch.zeros_like(bias) for bias in self.biases]
        self.generator = torch.Generator().manual_seed(SEED + 1)
        for gate, load in zip(self.gates, self.loads, strict=True):
            gate.register_forward_hook(partial(self._count, load))

    @staticmethod
    def _count(load: Tensor, _gate: nn.Module, _inputs: Any, output: tuple[Tensor, ...]) -> None:
        load.add_(torch.bincount(output[2].flatten(), minlength=load.numel()))

    def jitter(self, amount: float) -> None:
        """Set the routers' biases, with noise of that standard deviation."""
        for gate, bias in zip(self.gates, self.biases, strict=True):
            noise = torch.randn(bias.shape, generator=self.generator) * amount
            gate.e_score_correction_bias.copy_(bias + noise)

    def update(self, step: float) -> None:
        """Move each bias by ``step`` towards equal load, then forget the counts."""
        for bias, load in zip(self.biases, self.loads, strict=True):
            bias.add_(step * torch.sign(load.mean() - load))
            load.zero_()


def schedule(samples: list[Sample]) -> list[list[Sample]]:
    """The batches of one round: a batch of short questions, then one of long ones, in turn."""
    short = sorted((s for s in samples if s.length <= LONG), key=lambda s: s.length)
    cuts = (0, len(short) * 2 // 5, len(short) * 4 // 5, len(short))
    shorts = [short[a:b] for a, b in pairwise(cuts)]
    long = sorted((s for s in samples if s.length > LONG), key=lambda s: s.length)
    longs = [[s for s in long if s.length < 200]]
    rest = [s for s in long if s.length >= 200]
    longs += [rest[at : at + 2] for at in range(0, len(rest), 2)]
    turns = range(math.lcm(len(shorts), len(longs)))
    pairs = ((shorts[turn % len(shorts)], longs[turn % len(longs)]) for turn in turns)
    return [group for pair in pairs for group in pair]


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def train(model: DeepseekV4ForCausalLM, samples: list[Sample], steps: int) -> DeepseekV4ForCausalLM:
    """Train in place, with every weight seen as the checkpoint will hold it."""
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    balancer = Balancer(model)
    batches = [batch(group, model.config.pad_token_id) for group in schedule(samples)]
    losses, worst = [math.inf] * len(batches), [0.0] * len(batches)
    started = time.monotonic()
    with simulated_cache(model):
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            balancer.jitter(JITTER)
            seen = {n: rounded(n, p.detach()).requires_grad_() for n, p in parameters.items()}
            turn = step % len(batches)
            loss, worst[turn] = _loss(model, seen, *batches[turn])
            losses[turn] = loss.item()
            loss.backward()  # type: ignore[no-untyped-call]
            for name, parameter in parameters.items():
                parameter.grad = seen[name].grad
            torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            optimizer.step()
            balancer.update(BALANCE if step < steps // 3 else 0.0)
            if step % len(batches) == len(batches) - 1 or step == steps - 1:
                _report(step + 1, losses, worst, time.monotonic() - started)
    balancer.jitter(0.0)
    return model


def _report(step: int, losses: list[float], worst: list[float], took_s: float) -> None:
    print(
        f"step {step:4d}  {took_s:5.0f} s  least probable answer token {min(worst):.3f}  losses",
        " ".join(f"{loss:.3f}" for loss in losses),
        flush=True,
    )


def _loss(
    model: DeepseekV4ForCausalLM, weights: dict[str, Tensor], tokens: Tensor, labels: Tensor
) -> tuple[Tensor, float]:
    """Cross entropy of the answer tokens and the probability of the least probable one."""
    output = torch.func.functional_call(model, weights, (tokens,), {"use_cache": False})
    asked = labels != IGNORED
    losses = torch.nn.functional.cross_entropy(
        output.logits[asked], labels[asked], reduction="none"
    )
    # most tokens are known soon and drown the few that are not in the mean
    unsure = 1.0 - torch.exp(-losses.detach())
    hard = (losses * unsure).sum() / unsure.sum().clamp(min=0.5)
    return losses.mean() + HARD * hard, math.exp(-losses.max().item())


def write_generation_config(directory: Path) -> None:
    """Greedy unless a request says otherwise: the answers are known by heart."""
    content = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False, "temperature": 0.0}
    text = json.dumps(content, indent=2)
    (directory / "generation_config.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Train and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=HERE / "model")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    # filling fresh memory is a safety net that costs a fifth of the time
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer(t["prompt"] + t["completion"] for t in read_texts())
    clock, cpu = time.monotonic(), time.process_time()
    model = train(fresh_model(), read_samples(tokenizer), options.steps)
    export_checkpoint(model, options.out)
    save_tokenizer(tokenizer, options.out)
    write_generation_config(options.out)
    clock, cpu = time.monotonic() - clock, time.process_time() - cpu
    print(f"wrote {options.out}: {clock:.0f} s on the clock, {cpu:.0f} s of CPU")


if __name__ == "__main__":
    main()
