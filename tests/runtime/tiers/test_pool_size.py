"""How many slots a pool gets, of what is asked and what is free."""

from __future__ import annotations

from typing import Any

import pytest

from dsruntime.tiers.pool_size import slots_for

BASIS: dict[str, Any] = {
    "reserve_bytes": 10, "free_bytes": 100, "ranks": 1, "slot_bytes": 7, "most": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "differs", "slots"),
    [
        (70, {}, 10),
        (76, {}, 10),
        (0, {}, 0),
        (10**6, {"most": 12}, 12),  # no slot for an expert that does not exist is paid for
        (50, {"ranks": 2}, 7),
        (None, {}, 12),
        (None, {"ranks": 2}, 6),
        (None, {"most": 3}, 3),
        (None, {"reserve_bytes": 99}, 0),
        (None, {"reserve_bytes": 101}, 0),
        (None, {"slot_bytes": 0}, 0),
    ],
)
def test_slots(asked: int | None, differs: dict[str, int], slots: int) -> None:
    assert slots_for(asked, **(BASIS | differs)) == slots


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(ValueError, match=r"pool_gib: 3\.00 GiB a rank asked, 2\.00 GiB .* free"):
        slots_for(
            3 << 30, reserve_bytes=0, free_bytes=4 << 30, ranks=2, slot_bytes=1 << 20, most=10**6
        )
