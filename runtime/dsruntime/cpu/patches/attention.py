"""Attention metadata."""

from __future__ import annotations

from typing import Any

from dsruntime.cpu.patches.base import Patch, Situation


def complete_tile_schedule(_situation: Situation) -> None:
    """The CPU builder returns three of the five layer types that its caller reads.

    The caller (``DeepseekSparseSWAMetadataBuilder``) learned ratios 1 and 2 with DeepSeek-V4.1, the
    CPU override did not: the first step dies with ``KeyError: 'c1a'``, with AMX or without.
    """
    from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder as Builder
    from vllm.v1.attention.backends.mla.sparse_swa import _LAYER_TYPE_C1A, _LAYER_TYPE_C2A

    original = Builder.build_tile_scheduler

    def build_tile_scheduler(self: Any, num_decode_tokens: int) -> dict[str, Any]:
        missing = {_LAYER_TYPE_C1A: None, _LAYER_TYPE_C2A: None}
        return {**missing, **original(self, num_decode_tokens)}

    Builder.build_tile_scheduler = build_tile_scheduler


PATCHES = (
    Patch(
        "tile-schedule",
        "vLLM's CPU metadata builder forgets the layer types c1a and c2a",
        needed=lambda _: True,
        apply=complete_tile_schedule,
    ),
)
