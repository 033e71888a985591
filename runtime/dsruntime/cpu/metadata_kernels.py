"""vLLM's Triton metadata kernels for DeepSeek-V4, for CPUs on which Triton does not run.

vLLM lets a platform replace its Triton kernels by name (``vllm.triton_utils.dispatcher``). Each
function here has the parameter names of the kernel it replaces, so that launch arguments arrive by
keyword. Kernels whose outputs the CPU attention never reads do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

Kernel = Callable[..., None]


def token_request_mapping(
    query_start_loc: torch.Tensor,
    output: torch.Tensor,
    num_reqs: int,
    num_mapped: int,
    num_tokens: int,
    num_warps: int = 0,
) -> None:
    """``output[t]`` = the request of token t (query_start_loc [R + 1]), 0 from num_mapped on."""
    tokens = torch.arange(num_tokens, dtype=query_start_loc.dtype)
    requests = torch.searchsorted(
        query_start_loc[1 : num_reqs + 1].contiguous(), tokens, right=True
    )
    requests.clamp_(max=num_reqs - 1)
    requests[num_mapped:] = 0
    output[:num_tokens] = requests.to(output.dtype)


def compressed_slot_mapping(
    compressed_slot_mapping_ptr: torch.Tensor,
    slot_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    dcp_world_size: int,
    cp_interleave: int,
    COMPRESS_RATIO: int,  # noqa: N803 - vLLM's parameter names
    PAD_ID: int,  # noqa: N803
    TRITON_BLOCK_SIZE: int,  # noqa: N803
) -> None:
    """Slots of the compressed entries that the step's tokens close; PAD_ID for the others."""
    starts = query_start_loc_ptr[: block_table_ptr.shape[0] + 1].to(torch.int64)
    lengths = starts[1:] - starts[:-1]
    requests = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths)
    count = requests.shape[0]
    first = int(starts[0])
    offset = torch.arange(count) - (starts[:-1] - first)[requests]
    positions = (seq_lens_ptr[: lengths.shape[0]].to(torch.int64) - lengths)[requests] + offset
    closing = (positions + 1) % COMPRESS_RATIO == 0
    closing &= slot_mapping_ptr[first : first + count] != PAD_ID
    cycle = cp_interleave * dcp_world_size
    local = torch.div(positions, cycle, rounding_mode="floor") * cp_interleave
    local += positions % cp_interleave
    entry = torch.div(local, COMPRESS_RATIO, rounding_mode="floor").masked_fill_(~closing, 0)
    page = torch.div(entry, block_size, rounding_mode="floor")
    slots = block_table_ptr[requests, page].to(torch.int64) * block_size + entry % block_size
    compressed_slot_mapping_ptr[first : first + count] = slots.masked_fill_(~closing, PAD_ID).to(
        compressed_slot_mapping_ptr.dtype
    )


def prefill_chunk_metadata(
    query_start_loc_ptr: torch.Tensor,
    uncompressed_seq_lens_ptr: torch.Tensor,
    cu_compressed_seq_lens_ptr: torch.Tensor,
    row_start_cu_compressed_seq_lens_ptr: torch.Tensor,
    token_to_seq_ptr: torch.Tensor,
    cu_compressed_seq_len_ks_ptr: torch.Tensor,
    cu_compressed_seq_len_ke_ptr: torch.Tensor,
    query_slice_start: int,
    query_slice_stop: int,
    DCP_RANK: int,  # noqa: N803 - vLLM's parameter names
    DCP_WORLD: int,  # noqa: N803
    DCP_INTERLEAVE: int,  # noqa: N803
    BLOCK_SIZE: int,  # noqa: N803
    COMPRESS_RATIO: int,  # noqa: N803
) -> None:
    """Row bounds of each query's compressed context, and the request of each compressed row."""
    if DCP_WORLD > 1:
        raise NotImplementedError("decode context parallelism is not supported on CPUs")
    starts = query_start_loc_ptr.to(torch.int64)
    lengths = starts[1:] - starts[:-1]
    count = lengths.shape[0]
    requests = torch.repeat_interleave(torch.arange(count), lengths)
    offset = torch.arange(requests.shape[0]) - starts[:-1][requests]
    before = (uncompressed_seq_lens_ptr[:count].to(torch.int64) - lengths)[requests]
    context = torch.div(before + offset + 1, COMPRESS_RATIO, rounding_mode="floor")
    wanted = slice(query_slice_start, query_slice_stop)
    row_start = row_start_cu_compressed_seq_lens_ptr.to(torch.int64)[requests][wanted]
    size = row_start.shape[0]
    cu_compressed_seq_len_ks_ptr[:size] = row_start.to(cu_compressed_seq_len_ks_ptr.dtype)
    cu_compressed_seq_len_ke_ptr[:size] = (row_start + context[wanted]).to(
        cu_compressed_seq_len_ke_ptr.dtype
    )
    rows = cu_compressed_seq_lens_ptr.to(torch.int64)
    owners = torch.repeat_interleave(torch.arange(count), rows[1 : count + 1] - rows[:count])
    token_to_seq_ptr[int(rows[0]) : int(rows[0]) + owners.shape[0]] = owners.to(
        token_to_seq_ptr.dtype
    )


def uniform_decode(
    seq_lens_ptr: torch.Tensor,
    decode_seq_lens_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    expanded_block_table_ptr: torch.Tensor,
    expanded_bt_stride: int,
    decode_lens_ptr: torch.Tensor,
    max_decode_len: int,
    BLOCK_SIZE: int,  # noqa: N803 - vLLM's parameter name
) -> None:
    """Speculative decoding: every draft token becomes a request of one token."""
    requests = min(block_table_ptr.shape[0], seq_lens_ptr.shape[0])
    count = requests * max_decode_len
    back = torch.arange(max_decode_len) - max_decode_len + 1
    lengths = (seq_lens_ptr[:requests].to(torch.int64).unsqueeze(1) + back).clamp_(min=0)
    decode_seq_lens_ptr[:count] = lengths.reshape(-1).to(decode_seq_lens_ptr.dtype)
    width = min(expanded_bt_stride, block_table_ptr.shape[1])
    expanded = block_table_ptr[:requests, :width].repeat_interleave(max_decode_len, dim=0)
    expanded_block_table_ptr[:count, :width] = expanded.to(expanded_block_table_ptr.dtype)
    decode_lens_ptr[:count] = 1


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """A kernel whose outputs only the GPU attention reads."""


_MLA = "vllm.v1.attention.backends.mla"

KERNELS: dict[str, Kernel] = {
    "vllm.v1.attention.ops.metadata._token_request_mapping_kernel": token_request_mapping,
    f"{_MLA}.compressor_utils.CompressedSlotMappingKernel.kernel": compressed_slot_mapping,
    f"{_MLA}.indexer.BuildPrefillChunkMetadataKernel.kernel": prefill_chunk_metadata,
    f"{_MLA}.indexer.PrepareUniformDecodeKernel.kernel": uniform_decode,
    f"{_MLA}.sparse_swa.ComputeSWAIndicesAndLensKernel.kernel": nothing,
    f"{_MLA}.sparse_swa.ComputePrefillMetadataKernel.kernel": nothing,
    f"{_MLA}.sparse_swa.ComputeDSparkNoncausalSWAIndicesKernel.kernel": nothing,
}


def register_missing() -> list[str]:
    """Replace the kernels that are still vLLM's own; the names replaced. Idempotent."""
    from vllm.triton_utils import dispatcher

    wanted = {name: kernel for name, kernel in KERNELS.items() if name not in dispatcher._registry}
    if wanted:
        tolerate_strange_objects()
        dispatcher.register_kernels(wanted)
    return list(wanted)


def tolerate_strange_objects() -> None:
    """Let vLLM's registration pass over objects whose `__dict__` is not a mapping. Idempotent.

    It looks through every object of every module, and llvmlite's wrapper of C functions (there as
    soon as anything has imported numba) would stop it.
    """
    from vllm.triton_utils import dispatcher

    dispatcher.vars = _attributes


def _attributes(value: Any) -> Mapping[str, Any]:
    """`vars(value)`, or nothing where that is not a mapping."""
    found = value.__dict__
    return found if isinstance(found, dict | MappingProxyType) else {}
