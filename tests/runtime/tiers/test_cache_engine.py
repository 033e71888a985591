"""Real vLLM over a base cache: replays, streams and mapped layers leave the bits of resident."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dsruntime.codec.layout import Correction
from dsruntime.tiers.cache import BaseCache
from dsruntime.tiers.pool import NO_SLOT
from dsruntime.tiers.snapshot import BaseSnapshot
from tests.runtime.support.engine import engine
from tests.runtime.tiers.conftest import CANARY

pytestmark = pytest.mark.engine

ROW_BYTES = 57_344
"""A base row of the canary; there are 32, and a token uses 8 of them."""
LONG = [3 + 11 * i % 900 for i in range(236)]
"""With what follows it crosses position 256, where windows of both compressors close."""
SHORT = [[3 + 7 * i % 900 for i in range(start, start + 20)] for start in (0, 60, 200)]


def gib(rows: int) -> float:
    return rows * ROW_BYTES / 2**30


@dataclass(frozen=True)
class Said:
    """Token ids, their log-probabilities, how it ended, and tokens of the prompt not computed."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str | None
    told: Any
    cached: int


@contextmanager
def serving(
    pack: Path, checkpoint: Path = CANARY, *, prefixes: bool = False, **ours: Any
) -> Iterator[Any]:
    """An engine over the pack; resident unless told otherwise."""
    settings = {"experts": "w2-resident", "pack_dir": str(pack), "heat": False, **ours}
    with engine(
        checkpoint,
        additional_config={"dsruntime": settings},
        kv_cache_memory_bytes=256 << 20,
        enable_prefix_caching=prefixes,
    ) as llm:
        yield llm


def ask(llm: Any, prompts: list[list[int]], new_tokens: int) -> list[Said]:
    """Greedy continuations, in one batch."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, logprobs=0
    )
    found = []
    for output in llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
    ):
        answer = output.outputs[0]
        logprobs = tuple(next(iter(place.values())).logprob for place in answer.logprobs or ())
        found.append(
            Said(
                tuple(answer.token_ids),
                logprobs,
                answer.finish_reason,
                output.kv_transfer_params,
                output.num_cached_tokens,
            )
        )
    return found


def worker_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker


def snapshot_of(llm: Any) -> BaseSnapshot:
    found: BaseSnapshot = worker_of(llm).tiers.steps.snapshot()
    return found


def state_of(llm: Any) -> list[bytes]:
    """Every byte kept between steps: keys, values, compressor states, index keys."""
    context = worker_of(llm).model_runner.compilation_config.static_forward_context
    caches = [layer.kv_cache for layer in context.values() if hasattr(layer, "kv_cache")]
    tensors = [tensor for tensor in caches if isinstance(tensor, torch.Tensor) and tensor.numel()]
    assert len(tensors) > 4
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]


def conversation(llm: Any) -> tuple[list[list[Said]], list[bytes]]:
    """A long prompt with a decode across a window's end, then several at once, then one alone."""
    said = [ask(llm, [LONG], 30), ask(llm, SHORT, 8), ask(llm, SHORT[:1], 8)]
    return said, state_of(llm)


def test_replayed_streamed_and_mapped_engines_leave_the_same_bits_as_resident(
    plugin_path: Path, canary_packs: dict[Correction, Path]
) -> None:
    pack = canary_packs[Correction.SPLIT]
    with serving(pack) as llm:
        said, state = conversation(llm)
    cached = {"experts": "w2-cache", "base_cache_gib": gib(16), "arena_gib": gib(6)}
    with serving(pack, **cached, mapped_layers="1") as llm:
        got, left = conversation(llm)
        counted = snapshot_of(llm)
    assert got == said
    assert left == state
    assert (counted.slots, counted.arena_rows, counted.mapped_layers) == (14, 6, 1)
    assert counted.replayed_steps > 5, "the working set fits: nothing was replayed"
    assert counted.replays > counted.replayed_steps, "no step took more than one more pass"
    assert counted.rescues > 0, "three sequences fit the cache: nothing was streamed"
    assert counted.streamed_rows > 0
    assert counted.arena_hits > 0
    assert counted.degraded_steps == counted.unreadable == 0


def test_an_approximate_engine_says_which_requests_it_served_degraded(
    plugin_path: Path, canary_packs: dict[Correction, Path]
) -> None:
    cached = {"experts": "w2-cache", "base_cache_gib": gib(12)}
    with serving(
        canary_packs[Correction.SPLIT], **cached, replay="approximate", replay_tolerance=32
    ) as llm:
        (said,) = ask(llm, [LONG], 30)
        counted = snapshot_of(llm)
    assert said.reason == "length"
    assert counted.degraded_steps > 0
    assert said.told["dsruntime"] == {
        "degraded_steps": counted.degraded_steps,
        "experts_left_out": counted.left_out,
    }
    assert counted.replays == counted.rescues == 0, "every miss was within the tolerance"


def test_with_the_gate_always_open_every_decoded_token_is_corrected(
    plugin_path: Path, canary_packs: dict[Correction, Path]
) -> None:
    ours = {"pool_gib": 0.01, "pool_policy": "fixed", "gate_threshold": 1.0}
    token = SHORT[0][:1]  # a prompt of one token is a decode step, and so all of it is gated
    with serving(canary_packs[Correction.PLAIN], **ours) as llm:
        gated = ask(llm, [token], 6)
        counted, store = snapshot_of(llm), worker_of(llm).tiers.store
        assert counted.gate_checks == counted.gate_fires == 6
        assert counted.gate_redone > 0
        assert counted.gate_corrections == store.counters.promotions > 8
        assert store.counters.hits == store.counters.uses
        store.preload(np.flatnonzero(~store.pool.visible()).tolist())
        assert ask(llm, [token], 6) == gated
        assert snapshot_of(llm).gate_redone == counted.gate_redone, "redone with nothing to gain"


def hashed_apart(checkpoint: Path) -> tuple[int, int, int, list[int]]:
    """Tokens by what layer 0, which routes by token, sends them to.

    One, another with no expert in common, a third that shares some with the first; the first's.
    """
    with safe_open(str(checkpoint / "model.safetensors"), "pt") as file:
        table = file.get_tensor("layers.0.ffn.gate.tid2eid").tolist()
    first, others = 20, range(21, 900)
    apart = next(token for token in others if not set(table[token]) & set(table[first]))
    near = next(token for token in others if set(table[token]) & set(table[first]))
    return first, apart, near, table[first]


def flip(file: Path, rows: list[int]) -> None:
    """One bit in each of these rows."""
    data = bytearray(file.read_bytes())
    for row in rows:
        data[row * ROW_BYTES + 1234] ^= 4
    file.write_bytes(data)


def empty(cache: BaseCache) -> None:
    """Every slot is free again, as after prompts enough."""
    cache.slots.table[:] = NO_SLOT
    cache.slots._free[:] = range(cache.slots.slots)


def test_a_row_damaged_while_serving_fails_its_requests_alone_or_is_made_again(
    plugin_path: Path, canary_packs: dict[Correction, Path], tmp_path: Path
) -> None:
    pack = shutil.copytree(canary_packs[Correction.NONE], tmp_path / "pack")
    checkpoint = shutil.copytree(CANARY, tmp_path / "model")
    base, shard = pack / "base.0of1.bin", checkpoint / "model.safetensors"
    intact = base.read_bytes()
    one, other, near, experts = hashed_apart(checkpoint)
    cached = {"experts": "w2-cache", "base_cache_gib": gib(12), "mapped_layers": "3"}
    with serving(pack, checkpoint, prefixes=True, **cached) as llm:
        good = [ask(llm, [[one] * length, [other] * length], 1) for length in (1, 40)]
        aside = shard.rename(tmp_path / "aside")
        flip(base, experts)
        for want, length in zip(good, (1, 40), strict=True):
            empty(worker_of(llm).tiers.store.bases.cache)
            failed, fine = ask(llm, [[one] * length, [other] * length], 1)
            assert (failed.reason, failed.tokens) == ("error", ())
            assert fine == want[1], "a request that did not need the row"
        fresh = [near] * 300  # more than a block of the prefix cache
        assert ask(llm, [fresh], 1)[0].reason == "error"
        assert snapshot_of(llm).failed_requests == 3
        aside.rename(shard)
        (again,) = ask(llm, [fresh], 1)
        assert again.reason == "length"
        assert again.cached == 0, "a failed step's blocks stayed in the prefix cache"
        assert ask(llm, [fresh], 1)[0].cached == 256
        assert ask(llm, [[one] * 40], 1) == good[1][:1]
        assert base.read_bytes() == intact, "made again from the checkpoint, and written back"
