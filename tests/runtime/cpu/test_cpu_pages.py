"""The byte layout of the caches, against pages written and read byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.cpu.ops import fp8, pages
from tests.runtime.support import float64
from tests.runtime.support.paged import index_pages, latent_pages, outside


def rows_of(count: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, 1, generator=generator).exp()
    return torch.randn(count, width, generator=generator) * spread


def test_every_e4m3_code_decodes_to_its_value() -> None:
    decoded = fp8.decode_e4m3(torch.arange(256, dtype=torch.uint8)).double().numpy()
    np.testing.assert_array_equal(decoded, float64.E4M3)


def test_a_latent_lies_in_its_page_where_the_layout_says() -> None:
    block_size, slot = 4, 9  # block 2, token 1
    cache = latent_pages(blocks=3, block_size=block_size)
    row = rows_of(1, 512)
    pages.store_latents(cache, block_size, torch.tensor([slot]), row)
    page = cache[2].numpy()
    token = page[1 * 576 : 2 * 576]
    scales = page[block_size * 576 + 8 : block_size * 576 + 16]
    factors = 2.0 ** (scales[:7].astype(int) - 127.0)
    nope = float64.E4M3[token[:448]] * np.repeat(factors, 64)
    rope = np.frombuffer(token[448:].tobytes(), dtype=np.uint16).astype(np.uint32) << 16
    expected = float64.as_latent(row[0].double().numpy())
    np.testing.assert_array_equal(nope, expected[:448])
    np.testing.assert_array_equal(rope.view(np.float32).astype(float), expected[448:])
    assert scales[7] == 0


@pytest.mark.parametrize("block_size", [1, 2, 64])
def test_latents_read_back_are_the_quantized_rows(block_size: int) -> None:
    cache = latent_pages(blocks=5, block_size=block_size)
    slots = torch.randperm(5 * block_size)[:4]
    rows = rows_of(4, 512)
    pages.store_latents(cache, block_size, slots, rows)
    expected = np.stack([float64.as_latent(row) for row in rows.double().numpy()])
    read = pages.load_latents(cache, block_size, slots).double().numpy()
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize(
    ("make", "store", "width"),
    [
        (latent_pages, pages.store_latents, 512),
        (index_pages, pages.store_index_keys, 128),
    ],
)
def test_bytes_between_the_rows_belong_to_other_layers_and_stay(make, store, width) -> None:  # type: ignore[no-untyped-def]
    cache = make(4, 8)
    before = outside(cache).clone()
    store(cache, 8, torch.arange(32), rows_of(32, width))
    assert torch.equal(outside(cache), before)


def test_an_index_key_has_one_scale_behind_the_keys_of_its_page() -> None:
    block_size, slot = 8, 13  # block 1, key 5
    cache = index_pages(blocks=2, block_size=block_size)
    row = rows_of(1, 128)
    pages.store_index_keys(cache, block_size, torch.tensor([slot]), row)
    page = cache[1].numpy()
    codes = page[5 * 128 : 6 * 128]
    at = block_size * 128 + 5 * 4
    scale = float(np.frombuffer(page[at : at + 4].tobytes(), dtype=np.float32)[0])
    expected = float64.fake_quantized(row[0].double().numpy(), 128)
    np.testing.assert_array_equal(float64.E4M3[codes] * scale, expected)
    read = pages.load_index_keys(cache, block_size, torch.tensor([slot]))
    np.testing.assert_array_equal(read[0].double().numpy(), expected)


@given(amax=st.floats(min_value=0.0, max_value=1e6, width=32))
@settings(max_examples=300, deadline=None)
def test_the_scale_is_the_smallest_power_of_two_that_holds_the_maximum(amax: float) -> None:
    exponent = int(fp8.scale_exponents(torch.tensor([amax], dtype=torch.float32))[0])
    largest = max(amax, 1e-4)
    assert largest <= 448.0 * 2.0**exponent * (1 + 1e-6)
    assert largest > 448.0 * 2.0 ** (exponent - 1) * (1 - 1e-6)


@given(power=st.integers(-8, 30))
def test_a_maximum_at_a_power_of_two_times_448_needs_exactly_that_power(power: int) -> None:
    exponent = fp8.scale_exponents(torch.tensor([448.0 * 2.0**power]))
    assert int(exponent[0]) == power
