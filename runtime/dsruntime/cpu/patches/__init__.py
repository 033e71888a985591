"""What vLLM 0.32.0 gets wrong or leaves out for DeepSeek-V4 on CPUs: one module per subject.

Each `Patch` says why it exists and when it is needed. All are applied in worker processes that
serve a DeepSeek-V4 model, before that model is built, and nowhere else.
"""

from __future__ import annotations

from dsruntime.cpu.patches import attention, dense, experts, sparse_indexer
from dsruntime.cpu.patches.base import Patch, Situation, apply_needed

PATCHES: tuple[Patch, ...] = (
    *attention.PATCHES,
    *sparse_indexer.PATCHES,
    *dense.PATCHES,
    *experts.PATCHES,
)

__all__ = ["PATCHES", "Patch", "Situation", "apply_needed"]
