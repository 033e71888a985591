"""Metadata kernels against loops written from vLLM's Triton kernels."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsruntime.cpu import metadata_kernels as kernels

batches = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 300)), min_size=1, max_size=5
)  # (query length, tokens before it) of each request


def starts_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@given(batch=batches, padding=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_token_finds_its_request_and_padding_finds_the_first(batch, padding) -> None:  # type: ignore[no-untyped-def]
    lengths = [q for q, _ in batch]
    total = sum(lengths)
    out = torch.full((total + padding + 2,), 99, dtype=torch.int32)
    kernels.token_request_mapping(starts_of(lengths), out, len(batch), total, total + padding)
    owners = [r for r, q in enumerate(lengths) for _ in range(q)]
    assert out[: total + padding].tolist() == owners + [0] * padding
    assert out[total + padding :].tolist() == [99, 99]


@given(batch=batches, ratio=st.sampled_from([4, 128]), skipped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_last_token_of_a_window_gets_the_slot_of_its_entry(batch, ratio, skipped) -> None:  # type: ignore[no-untyped-def]
    lengths = [q for q, _ in batch]
    total, block = sum(lengths), 2
    table = torch.randperm(len(batch) * 50).view(len(batch), 50).to(torch.int32)
    own = torch.zeros(total, dtype=torch.int64)
    if skipped and total:
        own[::3] = -1
    out = torch.full((total,), 77, dtype=torch.int64)
    seq_lens = torch.tensor([q + before for q, before in batch], dtype=torch.int32)
    kernels.compressed_slot_mapping(
        out, own, starts_of(lengths), seq_lens, table, 50, block, 1, 1, ratio, -1, 1024
    )
    want = []
    for request, (queries, before) in enumerate(batch):
        for position in range(before, before + queries):
            entry = position // ratio
            closes = (position + 1) % ratio == 0 and own[len(want)] != -1
            slot = int(table[request, entry // block]) * block + entry % block
            want.append(slot if closes else -1)
    assert out.tolist() == want


@given(batch=batches.filter(lambda b: any(q for q, _ in b)), ratio=st.sampled_from([4, 128]))
@settings(max_examples=60, deadline=None)
def test_each_query_is_bounded_by_the_entries_closed_before_it(batch, ratio) -> None:  # type: ignore[no-untyped-def]
    lengths = [q for q, _ in batch]
    entries = [(q + before) // ratio for q, before in batch]
    cu = starts_of(entries)
    total = sum(lengths)
    first, last = (0, total) if total < 4 else (1, total - 1)
    low, high = (torch.full((last - first,), 9, dtype=torch.int32) for _ in range(2))
    owner = torch.full((sum(entries),), 9, dtype=torch.int32)
    seq_lens = torch.tensor([q + before for q, before in batch], dtype=torch.int32)
    kernels.prefill_chunk_metadata(
        starts_of(lengths), seq_lens, cu, cu, owner, low, high, first, last, 0, 1, 1, 1024, ratio
    )
    want = [
        (int(cu[r]), int(cu[r]) + (before + i + 1) // ratio)
        for r, (queries, before) in enumerate(batch)
        for i in range(queries)
    ][first:last]
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == want
    assert owner.tolist() == [r for r, n in enumerate(entries) for _ in range(n)]


def test_drafts_become_requests_of_one_token() -> None:
    seq_lens = torch.tensor([10, 2, 0], dtype=torch.int32)
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    lengths, decode = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    expanded = torch.zeros(9, 4, dtype=torch.int32)
    kernels.uniform_decode(seq_lens, lengths, table, 4, expanded, 4, decode, 3, 1024)
    assert lengths.tolist() == [8, 9, 10, 0, 1, 2, 0, 0, 0]
    assert torch.equal(expanded, table.repeat_interleave(3, dim=0))
    assert decode.tolist() == [1] * 9


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_replacements_take_the_arguments_of_the_kernels_they_replace(name: str) -> None:
    """vLLM binds launch arguments by name only when the parameter names are equal."""
    from vllm.triton_utils import dispatcher

    if name in dispatcher._registry:
        kernel = dispatcher._registry[name][0]
    else:
        host, attribute = dispatcher._resolve_kernel(name)
        kernel = getattr(host, attribute)
    impl = kernels.KERNELS[name]
    if impl is kernels.nothing:
        return
    wanted = dispatcher._kernel_arg_names(kernel)
    taken = tuple(inspect.signature(impl).parameters)
    assert taken[: len(wanted)] == wanted


def test_objects_with_a_strange_dict_do_not_stop_the_registration() -> None:
    """numba's wrappers of C functions answer `__dict__` with another wrapper."""
    from dsruntime.cpu.metadata_kernels import _attributes

    class Strange:
        def __getattribute__(self, name: str) -> object:
            return self

    class Plain:
        kernel = 1

    assert _attributes(Strange()) == {}
    assert _attributes(Plain)["kernel"] == 1
    plain = Plain()
    plain.other = 2  # type: ignore[attr-defined]
    assert _attributes(plain) == {"other": 2}
