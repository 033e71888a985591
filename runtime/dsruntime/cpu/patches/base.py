"""What a patch is, and applying those that a situation needs, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dsruntime.cpu.features import CpuFeatures


@dataclass(frozen=True)
class Situation:
    """All that decides which patches are needed.

    ``portable_ops``: operators of ours that stand in for missing ones. ``ranks``: processes of
    this deployment on this host. ``speculative_tokens``: draft tokens per step, 0 without a draft.
    """

    cpu: CpuFeatures
    portable_ops: frozenset[str]
    ranks: int
    speculative_tokens: int


@dataclass(frozen=True)
class Patch:
    """One change to vLLM: ``apply`` it when ``needed``; ``why`` is for the person reading."""

    name: str
    why: str
    needed: Callable[[Situation], bool]
    apply: Callable[[Situation], None]


_applied: set[str] = set()


def apply_needed(patches: Iterable[Patch], situation: Situation) -> list[Patch]:
    """Apply what the situation needs and this process does not have yet; what is needed."""
    needed = [patch for patch in patches if patch.needed(situation)]
    for patch in needed:
        if patch.name not in _applied:
            patch.apply(situation)
            _applied.add(patch.name)
    return needed
