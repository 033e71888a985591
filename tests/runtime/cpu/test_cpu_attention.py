"""Attention over window and compressed slots, against float64 and against the naive gather."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.cpu.ops import attention, pages
from tests.runtime.support import float64
from tests.runtime.support.naive_attention import gather_attention
from tests.runtime.support.paged import latent_pages

SCALE = 512**-0.5


def filled(blocks: int, block_size: int, seed: int = 0) -> torch.Tensor:
    """Latent pages with a row in every slot."""
    cache = latent_pages(blocks, block_size)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(blocks * block_size, 512, generator=generator)
    pages.store_latents(cache, block_size, torch.arange(blocks * block_size), rows)
    return cache


def run(function, q, window, window_slots, block, compressed, slots, block2, sink):  # type: ignore[no-untyped-def]
    out = torch.full(q.shape, float("nan"), dtype=q.dtype)
    function(out, q, window, window_slots, block, compressed, slots, block2, sink, SCALE)
    return out


def window_of(tokens: int, width: int, permuted: torch.Tensor) -> torch.Tensor:
    """Slots of a sliding window of ``width`` over a sequence stored at ``permuted``."""
    local = torch.arange(tokens)[:, None] - torch.arange(width)
    return torch.where(local >= 0, permuted[local.clamp(min=0)], -1)


def expected(q, sources, sink):  # type: ignore[no-untyped-def]
    """float64, token by token."""
    out = np.zeros(q.shape)
    for token in range(q.shape[0]):
        rows = [
            pages.load_latents(cache, block, slots[token][slots[token] >= 0]).double().numpy()
            for cache, block, slots in sources
            if slots.shape[1]
        ]
        out[token] = float64.attention(
            q[token].double().numpy(), np.concatenate(rows), sink.double().numpy(), SCALE
        )
    return out


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
def test_window_and_compressed_rows_share_one_softmax_with_the_sink(tokens: int) -> None:
    torch.manual_seed(tokens)
    window, compressed = filled(6, 32), filled(5, 16, seed=1)
    window_slots = window_of(tokens, 32, torch.randperm(6 * 32))
    slots = torch.stack([torch.randperm(5 * 16)[:40] for _ in range(tokens)])
    slots[torch.rand(slots.shape) < 0.4] = -1
    q, sink = torch.randn(tokens, 3, 512) * 4, torch.randn(3)
    got = run(
        attention.flash_mla_with_kvcache_cpu,
        q, window, window_slots, 32, compressed, slots, 16, sink,
    )  # fmt: skip
    want = expected(q, [(window, 32, window_slots), (compressed, 16, slots)], sink)
    np.testing.assert_allclose(got.numpy(), want, atol=3e-5)


def test_layers_without_compression_pass_no_compressed_slots() -> None:
    cache = filled(4, 16)
    window_slots = window_of(50, 16, torch.randperm(64))
    q, sink = torch.randn(50, 2, 512), torch.randn(2)
    none = torch.empty(50, 0, dtype=torch.int64)
    got = run(
        attention.flash_mla_with_kvcache_cpu, q, cache, window_slots, 16, cache, none, 1, sink
    )
    want = expected(q, [(cache, 16, window_slots)], sink)
    np.testing.assert_allclose(got.numpy(), want, atol=3e-5)


def test_a_token_that_sees_nothing_gives_its_whole_weight_to_the_sink() -> None:
    cache = filled(1, 8)
    q = torch.randn(2, 2, 512)
    slots = torch.full((2, 4), -1)
    none = torch.empty(2, 0, dtype=torch.int64)
    got = run(
        attention.flash_mla_with_kvcache_cpu, q, cache, slots, 8, cache, none, 1, torch.zeros(2)
    )
    assert not got.any()


def test_an_absent_sink_takes_no_weight() -> None:
    cache = filled(1, 8)
    q, slots = torch.randn(1, 2, 512), torch.tensor([[3]])
    none = torch.empty(1, 0, dtype=torch.int64)
    sink = torch.full((2,), float("-inf"))
    got = run(attention.flash_mla_with_kvcache_cpu, q, cache, slots, 8, cache, none, 1, sink)
    row = pages.load_latents(cache, 8, torch.tensor([3]))
    torch.testing.assert_close(got[0], row.expand(2, 512))


def test_batches_of_unrelated_decodes_and_a_prompt_agree_with_the_naive_gather() -> None:
    torch.manual_seed(3)
    window, compressed = filled(40, 16), filled(20, 16, seed=5)
    decodes = torch.stack([torch.randperm(640)[:16] for _ in range(30)])
    prompt = window_of(100, 16, torch.randperm(640))
    window_slots = torch.cat([decodes, prompt])
    slots = torch.stack([torch.randperm(320)[:24] for _ in range(130)])
    q, sink = torch.randn(130, 4, 512), torch.randn(4)
    arguments = (q, window, window_slots, 16, compressed, slots, 16, sink)
    torch.testing.assert_close(
        run(attention.flash_mla_with_kvcache_cpu, *arguments),
        run(gather_attention, *arguments),
        atol=3e-5, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("capacity", [64, 100_000])
def test_distinct_slots_are_found_the_same_way_in_small_and_large_caches(capacity: int) -> None:
    slots = torch.tensor([5, -1, 3, 5, 60, -1, 0])
    used, place = attention._distinct(slots, capacity)
    assert used.tolist() == [0, 3, 5, 60]
    assert place.tolist() == [2, 4, 1, 2, 3, 4, 0]


@given(
    tokens=st.integers(1, 64), heads=st.integers(1, 64), seen=st.integers(1, 640)
)  # fmt: skip
@settings(deadline=None)
def test_tokens_that_all_see_the_same_rows_are_served_together(
    tokens: int, heads: int, seen: int
) -> None:
    assert attention.dense_is_cheaper(tokens, heads, seen, tokens * seen)


def test_tokens_that_share_nothing_are_served_one_by_one() -> None:
    assert not attention.dense_is_cheaper(64, 64, 64 * 640, 64 * 640)


@pytest.mark.parametrize("heads", [1, 8, 64, 128])
def test_the_band_of_a_sliding_window_is_served_together(heads: int) -> None:
    assert attention.dense_is_cheaper(64, heads, 191, 64 * 128)
