"""The indexer's queries, scores and selection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsruntime.cpu.ops import indexer, pages
from tests.runtime.support import float64
from tests.runtime.support.paged import cos_sin_table, index_pages


def test_queries_are_rotated_quantized_per_head_and_their_scale_goes_into_the_weight() -> None:
    torch.manual_seed(0)
    q = torch.randn(5, 3, 128).to(torch.bfloat16).float()
    weights = torch.randn(5, 3)
    positions = torch.tensor([0, 1, 9, 50, 99])
    q8, out = torch.empty(5, 3, 128, dtype=torch.float8_e4m3fn), torch.empty(5, 3)
    indexer.fused_indexer_q_rope_quant_cpu(
        positions, q, cos_sin_table(100, 64), q8, weights, 0.5, 0.25, out
    )
    for token in range(5):
        for head in range(3):
            row = float64.rotated(q[token, head].double().numpy(), int(positions[token]), 64)
            row[64:] = [float64.bf16(v) for v in row[64:]]
            scale = float64.power_scale(float(np.abs(row).max()))
            codes = q8[token, head].float().double().numpy()
            wanted = np.array([float64.to_e4m3(v / scale) for v in row])
            assert np.mean(codes == wanted) > 0.98  # fp32 rotation may cross a rounding boundary
            np.testing.assert_allclose(codes, wanted, atol=32)
            assert out[token, head].item() == pytest.approx(
                weights[token, head].item() * scale * 0.125, rel=1e-6
            )


class Requests:
    """Three requests of index keys in shuffled pages, and queries of each."""

    def __init__(self, counts: tuple[int, ...], keys: tuple[int, ...], heads: int = 4) -> None:
        torch.manual_seed(len(counts))
        self.block_size = 8
        width = max(-(-k // self.block_size) for k in keys)
        order = torch.randperm(width * len(keys)).view(len(keys), width)
        self.cache = index_pages(width * len(keys), self.block_size)
        self.keys = []
        for request, count in enumerate(keys):
            rows = torch.randn(count, 128)
            at = torch.arange(count)
            slots = order[request, at // self.block_size] * self.block_size + at % self.block_size
            pages.store_index_keys(self.cache, self.block_size, slots, rows)
            stored = [float64.fake_quantized(r, 128) for r in rows.double().numpy()]
            self.keys.append(np.array(stored))
        self.owner = torch.repeat_interleave(torch.arange(len(keys)), torch.tensor(counts))
        self.table = order[self.owner].to(torch.int32)
        tokens = self.owner.shape[0]
        self.q = torch.randn(tokens, heads, 128).to(torch.float8_e4m3fn)
        self.weight = torch.randn(tokens, heads)
        spread = torch.rand(tokens)
        limits = torch.tensor(keys)[self.owner]
        self.lengths = (spread * limits).to(torch.int32).clamp(max=limits)

    def scores(self, token: int) -> np.ndarray:
        keys = self.keys[int(self.owner[token])][: int(self.lengths[token])]
        q = self.q[token].float().double().numpy()
        return (np.maximum(q @ keys.T, 0) * self.weight[token].double().numpy()[:, None]).sum(0)


@pytest.mark.parametrize(
    ("counts", "keys"), [((1,), (5,)), ((7, 1, 20), (30, 9, 64)), ((1, 1, 1, 1), (9, 9, 16, 1))]
)
def test_scores_are_weighted_rectified_products_with_the_requests_own_keys(counts, keys) -> None:  # type: ignore[no-untyped-def]
    requests = Requests(counts, keys)
    longest = int(requests.lengths.max())
    got = indexer.fp8_paged_mqa_logits_cpu(
        requests.q, requests.cache, requests.weight, requests.lengths, requests.table, 8, longest
    )
    assert got.shape == (sum(counts), longest)
    for token in range(sum(counts)):
        length = int(requests.lengths[token])
        np.testing.assert_allclose(
            got[token, :length].numpy(), requests.scores(token), rtol=1e-4, atol=1e-3
        )
        assert torch.isinf(got[token, length:]).all()


def test_scores_do_not_depend_on_how_queries_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests((40, 3), (64, 17))
    arguments = (
        requests.q, requests.cache, requests.weight, requests.lengths, requests.table, 8, 64,
    )  # fmt: skip
    whole = indexer.fp8_paged_mqa_logits_cpu(*arguments)
    monkeypatch.setattr(indexer, "SCORE_BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(indexer.fp8_paged_mqa_logits_cpu(*arguments), whole)


def test_runs_of_equal_tables_are_requests() -> None:
    table = torch.tensor([[1, 2], [1, 2], [3, 2], [1, 2]])
    assert indexer.table_runs(table) == [(0, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("k", [4, 16])
def test_the_best_k_entries_are_kept_and_the_rest_is_minus_one(k: int) -> None:
    torch.manual_seed(k)
    scores = torch.randn(6, 20)
    lengths = torch.tensor([0, 1, 3, 4, 11, 20])
    table = torch.randperm(30).view(6, 5).to(torch.int32)
    slots, raw = torch.empty(6, k, dtype=torch.int32), torch.empty(6, k, dtype=torch.int32)
    indexer.topk_transform_512_cpu(scores, lengths, table, slots, 4, raw)
    for row in range(6):
        length = int(lengths[row])
        order = np.argsort(-scores[row, :length].numpy())[:k]
        kept = raw[row][raw[row] >= 0].tolist()
        assert sorted(kept) == sorted(order.tolist())
        assert len(kept) == min(k, length)
        where = [int(table[row, p // 4]) * 4 + p % 4 for p in raw[row].tolist() if p >= 0]
        assert slots[row][raw[row] >= 0].tolist() == where
        assert (slots[row][raw[row] < 0] == -1).all()


def test_without_any_entry_everything_is_minus_one() -> None:
    slots, raw = torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int32)
    indexer.topk_transform_512_cpu(
        torch.empty(2, 0), torch.zeros(2, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32),
        slots, 4, raw,
    )  # fmt: skip
    assert (slots == -1).all()
    assert (raw == -1).all()
