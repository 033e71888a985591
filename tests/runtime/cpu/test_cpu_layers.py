"""Hyper-connections, routing and packed products, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.cpu.ops import dense, hyper_connections, routing
from tests.runtime.support import float64


def connection(tokens: int = 5, n: int = 4, width: int = 32):  # type: ignore[no-untyped-def]
    torch.manual_seed(tokens)
    x = torch.randn(tokens, n, width)
    fn = torch.randn((2 + n) * n, n * width) * 0.1
    return x, fn, torch.rand(3) + 0.5, torch.randn((2 + n) * n)


def test_streams_collapse_into_a_block_input_with_weights_for_what_comes_back() -> None:
    x, fn, scale, base = connection()
    y, post, comb = hyper_connections.hc_pre_fused_cpu(x, fn, scale, base, 4, 20, 1e-6, 1e-5)
    for token in range(5):
        flat = float64.rms_normed(x[token].double().numpy().reshape(-1), 1e-6)
        mix = fn.double().numpy() @ flat
        s, b = scale.double().numpy(), base.double().numpy()
        pre = float64.sigmoid(mix[:4] * s[0] + b[:4]) + 1e-5
        np.testing.assert_allclose(
            y[token].numpy(), pre @ x[token].double().numpy(), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            post[token].numpy(), 2 * float64.sigmoid(mix[4:8] * s[1] + b[4:8]), rtol=1e-5
        )
        logits = (mix[8:] * s[2] + b[8:]).reshape(4, 4)
        np.testing.assert_allclose(
            comb[token].numpy(), float64.sinkhorn(logits, 20, 1e-5), rtol=1e-4, atol=1e-6
        )


def test_new_streams_mix_the_old_ones_by_column_and_add_the_block_output() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(3, 16), torch.randn(3, 4, 16)
    post, comb = torch.rand(3, 4), torch.rand(3, 4, 4)
    got = hyper_connections.hc_post_fused_cpu(x, residual, post, comb)
    for token in range(3):
        for j in range(4):
            want = sum(comb[token, i, j].double() * residual[token, i].double() for i in range(4))
            want = want + post[token, j].double() * x[token].double()
            torch.testing.assert_close(got[token, j].double(), want, atol=1e-5, rtol=1e-5)


def test_the_head_collapses_the_streams_without_mixing_them() -> None:
    x, _, _, _ = connection()
    fn, scale, base = torch.randn(4, 128) * 0.1, torch.rand(1), torch.randn(4)
    got = hyper_connections.hc_head_fused_cpu(x, fn, scale, base, 1e-4, 1e-6)
    for token in range(5):
        flat = float64.rms_normed(x[token].double().numpy().reshape(-1), 1e-6)
        pre = float64.sigmoid(fn.double().numpy() @ flat * scale.item() + base.double().numpy())
        np.testing.assert_allclose(
            got[token].numpy(), (pre + 1e-4) @ x[token].double().numpy(), rtol=1e-4, atol=1e-5
        )


def test_the_eps_of_the_head_and_of_its_norm_are_not_exchanged() -> None:
    x, fn, _, _ = connection()
    arguments = (x * 1e-4, fn[:4], torch.ones(1), torch.zeros(4))
    a = hyper_connections.hc_head_fused_cpu(*arguments, 0.5, 1e-9)
    b = hyper_connections.hc_head_fused_cpu(*arguments, 1e-9, 0.5)
    assert (a - b).abs().max() > 1e-5


@given(seed=st.integers(0, 1000), spread=st.floats(0.1, 4.0))
@settings(max_examples=25, deadline=None)
def test_sinkhorn_ends_on_columns_that_sum_to_one_and_every_round_evens_the_rows(
    seed: int, spread: float
) -> None:
    logits = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(seed)) * spread
    rows = []
    for rounds in (1, 5, 20):
        comb = hyper_connections.sinkhorn(logits, rounds, 1e-6)
        rows.append(float((comb.sum(dim=-1) - 1).abs().max()))
    # eps in the divisor keeps a column just short of one
    torch.testing.assert_close(comb.sum(dim=-2), torch.ones(2, 4), atol=1e-3, rtol=0)
    assert rows[2] <= rows[1] + 1e-4 <= rows[0] + 2e-4


def test_the_bias_chooses_experts_and_the_score_weighs_them() -> None:
    torch.manual_seed(0)
    logits, bias = torch.randn(6, 8), torch.randn(8)
    weights, ids = routing.biased_topk_cpu(
        torch.empty(6, 4), logits, bias, 3, True, "sqrtsoftplus", 0, 1.5, True
    )
    assert weights.dtype is torch.float32
    assert ids.dtype is torch.int32
    for token in range(6):
        score = np.sqrt(np.log1p(np.exp(logits[token].double().numpy())))
        best = np.argsort(-(score + bias.double().numpy()))[:3]
        assert sorted(ids[token].tolist()) == sorted(best.tolist())
        picked = score[ids[token].numpy()]
        np.testing.assert_allclose(weights[token].numpy(), 1.5 * picked / picked.sum(), rtol=1e-5)


def test_hash_layers_take_the_experts_the_token_names() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 8)
    table = torch.stack([torch.randperm(8)[:2] for _ in range(5)]).to(torch.int32)
    weights, ids = routing.hash_topk_cpu(logits, table, 2, "sqrtsoftplus", 0, 8, 1.5)
    assert torch.equal(ids, table)
    for token in range(5):
        score = np.sqrt(np.log1p(np.exp(logits[token].double().numpy())))[table[token].numpy()]
        np.testing.assert_allclose(weights[token].numpy(), 1.5 * score / score.sum(), rtol=1e-5)


def test_an_unknown_score_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'tanh'; known: sqrtsoftplus, sigmoid, softmax"):
        routing.hash_topk_cpu(torch.zeros(1, 2), torch.zeros(1, 1), 1, "tanh", 0, 2, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_multiply_by_the_transposed_weight(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 16).to(dtype), torch.randn(2, 7, 16).to(dtype)
    out = torch.empty(2, 5, 7, dtype=dtype)
    dense.bmm_cpu(out, a, dense.convert_weight_packed(b), True, None)
    want = np.einsum("bmk,bnk->bmn", a.double().numpy(), b.double().numpy())
    np.testing.assert_allclose(
        out.float().numpy(), want, atol=2e-5 if dtype is torch.float32 else 0.06
    )


def test_packing_copies_so_that_the_caller_may_free_its_weight() -> None:
    weight = torch.randn(2, 3, 4)
    packed = dense.convert_weight_packed(weight)
    assert packed.data_ptr() != weight.data_ptr()
