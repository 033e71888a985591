"""How many tokens a KV cache holds: vLLM's own block arithmetic over a table its code yields.

The table (`profiles/geometry/kv-vllm-*.json`) lists the groups of layers that share block tables
and the bytes of one block; a contract test recomputes it with the engine's code. The arithmetic
below is vLLM 0.32.0: `get_kv_cache_config_from_groups` (blocks = bytes // bytes per block),
`SlidingWindowSpec.max_admission_blocks_per_request` and `get_max_concurrency_for_kv_cache_config`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from dsctl.errors import ConfigError
from dsctl.paths import shipped
from dsctl.planning.units import ceil_div


@dataclass(frozen=True)
class Group:
    """Layers that share one block table: all tokens (`window` 0), or a sliding window of them."""

    block_size: int
    window: int

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks one request of `tokens` holds with `in_flight` tokens scheduled, not settled."""
        if not self.window:
            return ceil_div(tokens, self.block_size)
        # One more: a window need not start where a block does.
        return ceil_div(min(self.window - 1 + in_flight, tokens), self.block_size) + 1


@dataclass(frozen=True)
class KvTable:
    """The KV cache of one geometry under one engine version."""

    engine: str
    bytes_per_block: int
    groups: tuple[Group, ...]

    def request_blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks one request of `tokens` takes."""
        return sum(group.blocks(tokens, in_flight) for group in self.groups)

    def request_bytes(self, tokens: int, in_flight: int) -> int:
        """Bytes one request of `tokens` takes."""
        return self.request_blocks(tokens, in_flight) * self.bytes_per_block

    def capacity(self, nbytes: int, max_model_len: int, in_flight: int) -> tuple[int, float]:
        """Tokens and full-length requests that `nbytes` hold, as the engine's log reports them."""
        concurrency = (nbytes // self.bytes_per_block) / self.request_blocks(
            max_model_len, in_flight
        )
        return int(concurrency * max_model_len), concurrency

    def needed_bytes(self, max_model_len: int, sequences: int, in_flight: int) -> int:
        """Least bytes with which the engine starts and `sequences` requests can run together.

        One full-length request and the block kept back for padding, as the engine demands; each
        further sequence at least its windows and one block of its own.
        """
        least = self.request_blocks(1, 1) + len(self.groups)
        blocks = self.request_blocks(max_model_len, in_flight) + 1 + (sequences - 1) * least
        return blocks * self.bytes_per_block


def in_flight_tokens(max_num_batched_tokens: int, *, async_scheduling: bool) -> int:
    """Tokens scheduled and not yet settled: one batch, two when the next is scheduled meanwhile.

    `VllmConfig.max_in_flight_tokens` of vLLM 0.32.0, without pipeline parallelism.
    """
    return max_num_batched_tokens * (2 if async_scheduling else 1)


@cache
def kv_table(geometry: str, version: str, device: str) -> KvTable:
    """The shipped table of a geometry.

    Raises:
        ConfigError: there is none for it.
    """
    path = shipped("profiles", "geometry", f"kv-vllm-{version}.json")
    shipped_tables = json.loads(path.read_text(encoding="utf-8"))
    for table in shipped_tables["tables"]:
        if (table["geometry"], table["device"]) == (geometry, device):
            groups = tuple(Group(g["block_size"], g["window"]) for g in table["groups"])
            return KvTable(shipped_tables["engine"], table["bytes_per_block"], groups)
    raise ConfigError(
        f"{path}: no KV-cache table for geometry '{geometry}' on {device}",
        remedy="use a geometry that has one, or record it (`docs/planner.md` says how)",
    )
