"""Compressed entries against float64, for both kinds of windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsruntime.cpu.ops import pages
from dsruntime.cpu.ops.compressor import (
    compress_norm_rope_store_cpu,
    compress_norm_rope_store_indexer_cpu,
    save_partial_states_cpu,
)
from tests.runtime.support import float64
from tests.runtime.support.paged import cos_sin_table, index_pages, latent_pages

EPS = 1e-6


class Sequence:
    """A sequence whose states are saved at shuffled slots, and its float64 twin."""

    def __init__(self, tokens: int, head_dim: int, ratio: int) -> None:
        torch.manual_seed(tokens + ratio)
        self.ratio, self.head_dim = ratio, head_dim
        self.overlap = ratio == 4
        width = head_dim * (2 if self.overlap else 1)
        self.kv, self.score = torch.randn(tokens, width), torch.randn(tokens, width)
        self.ape = torch.randn(ratio, width)
        self.weight = torch.rand(head_dim) + 0.5
        self.positions = torch.arange(tokens)
        block = 4
        blocks = -(-tokens // block) + 2
        self.slots = torch.randperm(blocks * block)[:tokens]
        # states of other layers lie between the rows, and an unwritten slot may hold NaN
        pool = torch.full((blocks, block, 2 * width + 16), float("nan"))
        self.state = pool[..., : 2 * width]
        save_partial_states_cpu(
            self.kv, self.score, self.ape, self.positions, self.state, self.slots
        )

    def gather(self) -> torch.Tensor:
        window = self.ratio * (2 if self.overlap else 1)
        local = self.positions[:, None] - window + 1 + torch.arange(window)
        return torch.where(local >= 0, self.slots[local.clamp(min=0)], -1)

    def entry(self, index: int) -> np.ndarray:
        """Entry ``index`` in float64: pooled, normalized (not yet rotated)."""
        d, r = self.head_dim, self.ratio
        kv, score, ape = (t.double().numpy() for t in (self.kv, self.score, self.ape))
        values, logits = [], []
        for position in range((index - 1) * r if self.overlap else index * r, (index + 1) * r):
            if position < 0:
                continue
            half = slice(d, 2 * d) if self.overlap and position >= index * r else slice(0, d)
            values.append(kv[position, half])
            logits.append((score[position] + ape[position % r])[half])
        pooled = (np.stack(values) * float64.softmax(np.stack(logits), axis=0)).sum(axis=0)
        return float64.rms_normed(pooled, EPS) * self.weight.double().numpy()


@pytest.mark.parametrize(("tokens", "ratio"), [(19, 4), (300, 128)])
def test_attention_entries_are_pooled_normalized_rotated_and_stored(
    tokens: int, ratio: int
) -> None:
    sequence = Sequence(tokens, 512, ratio)
    cache = latent_pages(4, 8)
    entries = tokens // ratio
    kv_slots = torch.full((tokens,), -1)
    where = torch.randperm(32)[:entries]
    kv_slots[ratio - 1 :: ratio] = where
    compress_norm_rope_store_cpu(
        sequence.state, sequence.gather(), sequence.positions, kv_slots, sequence.weight, EPS,
        cos_sin_table(400, 64), cache, 8, ratio,
    )  # fmt: skip
    read = pages.load_latents(cache, 8, where).double().numpy()
    for index in range(entries):
        normed = sequence.entry(index)
        expected = float64.rotated(normed, index * ratio, 64)
        # entries are stored this coarsely: one e4m3 step of the block's largest, one bf16 step
        for start in range(0, 448, 64):
            block = slice(start, start + 64)
            step = 2.0**-4 * np.abs(expected[block]).max()
            np.testing.assert_allclose(read[index, block], expected[block], atol=step)
        np.testing.assert_allclose(read[index, 448:], expected[448:], rtol=2**-7, atol=1e-5)
        exact = np.mean(read[index, :448] == float64.fake_quantized(
            np.array([float64.bf16(v) for v in normed[:448]]), 64
        ))  # fmt: skip
        assert exact > 0.99  # fp32 against float64 may cross a rounding boundary, rarely


def test_index_keys_are_quantized_after_rotation_with_one_scale() -> None:
    sequence = Sequence(23, 128, 4)
    cache = index_pages(3, 8)
    kv_slots = torch.full((23,), -1)
    kv_slots[3::4] = torch.arange(5) * 3
    compress_norm_rope_store_indexer_cpu(
        sequence.state, sequence.gather(), sequence.positions, kv_slots, sequence.weight, EPS,
        cos_sin_table(64, 64), cache, 8, 4,
    )  # fmt: skip
    read = pages.load_index_keys(cache, 8, torch.arange(5) * 3).double().numpy()
    for index in range(5):
        rotated = float64.rotated(sequence.entry(index), index * 4, 64)
        expected = float64.fake_quantized(np.array([float64.bf16(v) for v in rotated]), 128)
        assert np.mean(read[index] == expected) > 0.99
        np.testing.assert_allclose(read[index], expected, atol=2**-4 * np.abs(expected).max())


def test_a_window_continues_states_saved_by_an_earlier_step() -> None:
    whole, split = Sequence(12, 512, 4), Sequence(12, 512, 4)
    assert torch.equal(whole.slots, split.slots)
    slots = torch.full((12,), -1)
    slots[3::4] = torch.arange(3)
    table, caches = cos_sin_table(16, 64), [latent_pages(1, 8), latent_pages(1, 8)]
    for sequence, cache, parts in zip(
        (whole, split), caches, ([slice(0, 12)], [slice(0, 6), slice(6, 12)]), strict=True
    ):
        for part in parts:
            compress_norm_rope_store_cpu(
                sequence.state, sequence.gather()[part], sequence.positions[part], slots[part],
                sequence.weight, EPS, table, cache, 8, 4,
            )  # fmt: skip
    read = [pages.load_latents(cache, 8, torch.arange(3)) for cache in caches]
    assert torch.equal(*read)


def test_tokens_that_close_nothing_write_nothing() -> None:
    sequence = Sequence(8, 512, 4)
    cache = latent_pages(1, 8)
    before = cache.clone()
    compress_norm_rope_store_cpu(
        sequence.state, sequence.gather(), sequence.positions, torch.full((8,), -1),
        sequence.weight, EPS, cos_sin_table(16, 64), cache, 8, 4,
    )  # fmt: skip
    assert torch.equal(cache, before)


def test_state_slot_minus_one_saves_nothing() -> None:
    state = torch.zeros(2, 4, 8)
    save_partial_states_cpu(
        torch.ones(2, 4), torch.ones(2, 4), torch.zeros(4, 4), torch.arange(2), state,
        torch.tensor([-1, -1]),
    )  # fmt: skip
    assert not state.any()
