"""Few tokens times packed codes: the products of the matrices, without the matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsruntime.codec.fp4 import decode_base, decode_fp4
from dsruntime.tiers.product import FEW, base_product, can_multiply, fp4_product


@given(
    tokens=st.integers(1, FEW),
    blocks=st.integers(1, 6),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_product_with_codes_is_the_product_with_their_values(
    tokens: int, blocks: int, rows: int, seed: int, dtype: torch.dtype
) -> None:
    random = np.random.default_rng(seed)
    k = 64 * blocks
    scales = random.integers(100, 150, (rows, k // 32), dtype=np.uint8)
    x = torch.from_numpy(random.standard_normal((tokens, k), np.float32)).to(dtype)
    for product, decode, per_byte in ((base_product, decode_base, 4), (fp4_product, decode_fp4, 2)):
        codes = random.integers(0, 256, (rows, k // per_byte), dtype=np.uint8)
        values = decode(codes, scales)
        want = x.double().numpy() @ values.T
        # a sum's rounding error goes by its terms, which may cancel
        size = np.abs(x.double().numpy()) @ np.abs(values).T
        got = product(x, codes, scales)
        assert got.dtype == dtype
        slack = 1e-6 if dtype == torch.float32 else 2**-8
        assert (np.abs(got.double().numpy() - want) <= slack * size).all()


@pytest.mark.parametrize(("product", "per_byte"), [(base_product, 4), (fp4_product, 2)])
def test_a_damaged_scale_shows(product, per_byte: int) -> None:  # type: ignore[no-untyped-def]
    scales = np.array([[127, 255]], np.uint8)
    result = product(torch.ones(1, 64), np.zeros((1, 64 // per_byte), np.uint8), scales)
    assert result.isnan().all()


def test_many_tokens_and_odd_widths_are_left_to_the_matrix() -> None:
    assert can_multiply(1, 256)
    assert not can_multiply(FEW + 1, 256)
    assert not can_multiply(1, 96)
