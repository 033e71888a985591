"""What every worker over tiers does, whatever it computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.logger import init_logger

from dsruntime.tiers.metrics import board_for
from dsruntime.tiers.rank import RankTiers

logger = init_logger("vllm.dsruntime")


class TierHooks:
    """Beside a worker of vLLM's, before it in the order of classes: loading, memory, the end."""

    tiers: RankTiers
    cache_config: Any
    parallel_config: Any
    rank: int

    def determine_available_memory(self) -> int:
        """For the KV cache: what is left when the pool has its share.

        An explicit size of the KV cache stays as it is asked. A pool that takes what is left needs
        one: otherwise the KV cache takes everything first.
        """
        settings = self.tiers.settings
        explicit = self.cache_config.kv_cache_memory_bytes is not None  # vLLM may set it meanwhile
        available = int(super().determine_available_memory())  # type: ignore[misc]
        if explicit:
            return available
        if settings.pool_bytes is None:
            raise ValueError(
                "additional-config: dsruntime.pool_gib: auto takes what the KV cache leaves, and "
                "the KV cache has no size of its own; add --kv-cache-memory-bytes"
            )
        # a pool that was allocated first is in what is taken already
        left = available - (settings.pool_bytes if settings.pool_allocation == "last" else 0)
        if left <= 0:
            raise ValueError(
                f"additional-config: dsruntime.pool_gib: {settings.pool_gib} GiB "
                f"leave nothing of {available / 2**30:.2f} GiB for the KV cache"
            )
        return left

    def compile_or_warm_up_model(self) -> Any:
        """The pool is allocated when everything else has its memory."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        logger.info("dsruntime: %s", self.tiers.allocate_pool())
        parallel = self.parallel_config
        number = parallel.data_parallel_index * parallel.world_size + self.rank
        self.tiers.show_on(board_for(number))
        return result

    def shutdown(self) -> None:
        """Stop promoting first."""
        try:
            self.tiers.close()
        finally:
            super().shutdown()  # type: ignore[misc]


@contextmanager
def method_in_place(config_class: Any, choose: Any) -> Iterator[None]:
    """Within, a quantisation's choice of method is ours: ``choose(original, config, layer, name)``.

    A class of our own under vLLM's name for it would do too, but differs by platform and for the
    draft; this is undone as soon as the model is loaded.
    """
    original = config_class.get_quant_method

    def get_quant_method(config: Any, layer: Any, prefix: str) -> Any:
        return choose(original, config, layer, prefix)

    config_class.get_quant_method = get_quant_method
    try:
        yield
    finally:
        config_class.get_quant_method = original
