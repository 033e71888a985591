"""Query and key preparation and the rotation undone, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsruntime.cpu.ops.query_key import (
    fused_qnorm_rope_kv_insert_cpu,
    inverse_gptj_rope_o_proj_cpu,
)
from tests.runtime.support import float64
from tests.runtime.support.paged import cos_sin_table, latent_pages

TABLE = cos_sin_table(1000, 64)


def prepared(slots: list[int], heads_padded: int, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    tokens = len(slots)
    q = torch.randn(tokens, 3, 512).to(dtype)
    kv = torch.randn(tokens, 512).to(dtype)
    positions = torch.randint(0, 1000, (tokens,))
    cache = latent_pages(3, 4)
    before = cache.clone()
    out = fused_qnorm_rope_kv_insert_cpu(
        q, kv, positions, cache, torch.tensor(slots), TABLE, heads_padded, 1e-6, 4
    )
    return q, kv, positions, cache, before, out


def test_queries_are_normalized_per_head_and_rotated() -> None:
    q, _, positions, _, _, out = prepared([0, 5, 11, 2], heads_padded=3)
    for token in range(4):
        for head in range(3):
            row = float64.rms_normed(q[token, head].double().numpy(), 1e-6)
            expected = float64.rotated(row, int(positions[token]), 64)
            np.testing.assert_allclose(out[token, head].numpy(), expected, atol=2e-6)


def test_padded_heads_are_zero() -> None:
    *_, out = prepared([0, 1], heads_padded=8)
    assert out.shape == (2, 8, 512)
    assert not out[:, 3:].any()


def test_keys_are_rotated_and_stored_at_their_slots() -> None:
    _, kv, positions, cache, _, _ = prepared([0, 5, 11, 2], heads_padded=3, dtype=torch.bfloat16)
    from dsruntime.cpu.ops.pages import load_latents

    read = load_latents(cache, 4, torch.tensor([0, 5, 11, 2])).double().numpy()
    for token in range(4):
        row = float64.rotated(kv[token].double().numpy(), int(positions[token]), 64)
        expected = float64.as_latent(row)
        np.testing.assert_array_equal(read[token, :448], expected[:448])
        np.testing.assert_allclose(read[token, 448:], expected[448:], rtol=2**-7)


def test_slot_minus_one_stores_nothing() -> None:
    *_, cache, before, _ = prepared([-1, -1], heads_padded=3)
    assert torch.equal(cache, before)


def test_fewer_slots_than_tokens_store_only_those() -> None:
    cache = latent_pages(3, 4)
    before = cache[2].clone()
    fused_qnorm_rope_kv_insert_cpu(
        torch.randn(3, 1, 512), torch.randn(3, 512), torch.arange(3), cache,
        torch.tensor([0]), TABLE, 1, 1e-6, 4,
    )  # fmt: skip
    assert torch.equal(cache[2], before)


def test_the_output_is_turned_back_by_its_position() -> None:
    o = torch.randn(5, 2, 512)
    positions = torch.tensor([0, 1, 17, 400, 999])
    back = inverse_gptj_rope_o_proj_cpu(o, positions, TABLE, 64)
    for token in range(5):
        for head in range(2):
            expected = float64.rotated(
                o[token, head].double().numpy(), int(positions[token]), 64, back=True
            )
            np.testing.assert_allclose(back[token, head].numpy(), expected, atol=2e-6)


def test_a_table_for_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 64 rotary channels"):
        inverse_gptj_rope_o_proj_cpu(
            torch.randn(1, 1, 512), torch.tensor([0]), cos_sin_table(4, 32), 64
        )
