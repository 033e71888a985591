"""How many slots the correction pool gets. Pure."""

from __future__ import annotations


def slots_for(
    asked_bytes: int | None,
    *,
    reserve_bytes: int,
    free_bytes: int,
    ranks: int,
    slot_bytes: int,
    most: int,
) -> int:
    """Slots of one rank.

    Args:
        asked_bytes: for one rank; None: what is free less the reserve, shared by the ranks.
        free_bytes: now, for all ranks of this memory together, before any has taken its pool.
        slot_bytes: 0 where the pack has no corrections.
        most: experts; more slots than that are never used.

    Raises:
        ValueError: names the key, and what would fit.
    """
    share = free_bytes // ranks
    if asked_bytes is None:
        left = max(free_bytes - reserve_bytes, 0) // ranks
        return min(left // slot_bytes, most) if slot_bytes else 0
    slots = min(asked_bytes // max(slot_bytes, 1), most)
    if slots * slot_bytes > share:
        raise ValueError(
            f"additional-config: dsruntime.pool_gib: {slots * slot_bytes / 2**30:.2f} GiB a rank "
            f"asked, {share / 2**30:.2f} GiB of memory are free for it"
        )
    return slots
