"""The operators of DeepSeek-V4 that vLLM's CPU build lacks without AMX, in portable torch.

Importing this package registers them all; `define_missing` puts those that are needed under
``torch.ops._C``, where vLLM looks for them.
"""

from dsruntime.cpu.ops import (
    attention,
    compressor,
    dense,
    hyper_connections,
    indexer,
    query_key,
    routing,
)
from dsruntime.cpu.ops.registry import PORTABLE, PortableOp, define_missing

__all__ = [
    "PORTABLE",
    "PortableOp",
    "attention",
    "compressor",
    "define_missing",
    "dense",
    "hyper_connections",
    "indexer",
    "query_key",
    "routing",
]
