"""What the base tier and its steps have done since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BaseSnapshot:
    """Counters of the base tier and its steps; all only grow, but for the last block.

    `Steps` counts in one of its own and hands out copies.

    Attributes:
        decode_steps: steps without a prompt's tokens, over a base cache.
        replayed_steps: those that missed an expert in their first pass.
        replays: passes beyond the first, of all steps.
        rescues: steps that were not miss-free within their rounds, or could not be because the
            cache is smaller than their working set, and ran layer by layer.
        misses: (layer, expert) pairs that a decode pass asked for in vain.
        fetched_rows, moved_bytes: base rows brought to the device, and their bytes.
        streamed_rows: of these, rows that a prompt took through scratch.
        arena_hits, arena_misses, pack_bytes: rows found in the arena or not; bytes read from packs.
        degraded_steps, left_out: approximate steps that went without some pair, and how many.
        unreadable: pairs that a step needed and could not be read at all.
        failed_requests: requests ended with an error because of that.
        gate_checks, gate_fires, gate_redone: decode steps looked at, found unsure, and redone.
        gate_corrections: corrections brought in for that.
        gate_refused: unsure steps not redone because their share was used up.
        slots, arena_rows, mapped_layers: sizes. arena_kind: pinned, locked or pageable.
    """

    decode_steps: int = 0
    replayed_steps: int = 0
    replays: int = 0
    rescues: int = 0
    misses: int = 0
    fetched_rows: int = 0
    moved_bytes: int = 0
    streamed_rows: int = 0
    arena_hits: int = 0
    arena_misses: int = 0
    pack_bytes: int = 0
    degraded_steps: int = 0
    left_out: int = 0
    unreadable: int = 0
    failed_requests: int = 0
    gate_checks: int = 0
    gate_fires: int = 0
    gate_redone: int = 0
    gate_corrections: int = 0
    gate_refused: int = 0

    slots: int = 0
    arena_rows: int = 0
    arena_kind: str = ""
    mapped_layers: int = 0
