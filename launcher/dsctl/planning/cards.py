"""Which cards of a machine an engine takes: the same for plan, checks and both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from dsctl.model.facts import Gpu
from dsctl.model.profile import Hardware

#: A label and what NVML reports differ by less than this.
LABEL_SLACK = 0.985


class Known(Protocol):
    """What is looked at of a card; `None` is unknown, and speaks against nothing."""

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Major and minor version."""

    @property
    def memory_total_bytes(self) -> int | None:
        """As NVML counts it."""


C = TypeVar("C", bound=Known)


def chosen(need: Hardware, cards: Sequence[C], count: int | None = None) -> tuple[C, ...]:
    """The cards that suit, in the order given: a small one for the display is passed over.

    Where too few suit it is the first ones, for the checks to say what is wrong with them. `count`
    is how many, if not as many as the profile needs.
    """
    count = need.gpus if count is None else count
    suitable = [card for card in cards if suits(need, card)]
    return tuple(suitable if len(suitable) >= count else cards)[:count]


def suits(need: Hardware, card: Known) -> bool:
    """Whether the kernels are for this card, and its memory is what the profile is made for."""
    wanted, has = need.compute_capability, card.compute_capability
    if wanted is not None and has is not None and has[0] != wanted[0]:
        return False
    memory = card.memory_total_bytes
    return memory is None or memory >= need.gpu_memory_bytes * LABEL_SLACK


def visible(need: Hardware, gpus: Sequence[Gpu]) -> str | None:
    """CUDA_VISIBLE_DEVICES of the chosen cards. NVML counts along the PCI bus, as CUDA does with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; vLLM takes numbers only, no UUIDs."""
    return ",".join(str(gpu.index) for gpu in chosen(need, gpus)) or None
