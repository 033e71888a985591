"""Real vLLM on the CPU, serving the canary from a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsruntime.codec.layout import Correction
from dsruntime.pack.build import build
from tests.runtime.pack.support import make_checkpoint
from tests.runtime.support.engine import Answer, answers, engine
from tests.runtime.tiers.conftest import CANARY

pytestmark = pytest.mark.engine

PROMPTS = [[3 + 7 * i % 900 for i in range(start, start + 40)] for start in (0, 50, 111, 300)]
ALL_GIB = 0.01
"""More than all corrections of the canary."""


def serve(
    pack: Path | None, pool_gib: float, rounds: int = 1, **more: Any
) -> tuple[list[list[Answer]], Any]:
    """Answers to the prompts, asked so many times, and the counters at the end."""
    ours: dict[str, Any] = {"experts": "w2-resident", "pool_gib": pool_gib, "heat": False, **more}
    if pack is not None:
        ours["pack_dir"] = str(pack)
    with engine(
        CANARY, additional_config={"dsruntime": ours}, kv_cache_memory_bytes=128 << 20
    ) as llm:
        found = [answers(llm, PROMPTS, 8) for _ in range(rounds)]
        worker = llm.llm_engine.model_executor.driver_worker.worker
        store = worker.tiers.store if ours["experts"] != "native" else None
        return found, store and (store.counters, store.pool)


def difference(left: list[Answer], right: list[Answer]) -> np.ndarray:
    """|difference| of the log-probability of each token of the prompts, in nats."""
    pairs = zip(left, right, strict=True)
    return np.concatenate(
        [np.abs(np.subtract(a.prompt_logprobs, b.prompt_logprobs)) for a, b in pairs]
    )


def test_the_engine_goes_from_2_bits_to_fp4_as_the_pool_fills(
    plugin_path: Path, canary_packs: dict[Correction, Path]
) -> None:
    (fp4,), _ = serve(None, 0, experts="native")
    (two_bit,), _ = serve(canary_packs[Correction.NONE], 0)
    found, (counters, pool) = serve(canary_packs[Correction.SPLIT], ALL_GIB, rounds=3)
    assert pool.visible().sum() == counters.promotions > 24
    # The plain engine differs from itself in a few tokens (a cached key rounded the other way).
    assert np.median(difference(two_bit, fp4)) > 0.3
    assert np.median(difference(found[0], two_bit)) < 1e-3
    assert np.median(difference(found[-1], fp4)) < 1e-3
    assert difference(found[-1], fp4).mean() < 0.01
    # Without a pack, and with prompts that wait: corrected from the first question on.
    (ensured,), (counters, _) = serve(None, ALL_GIB, prefill_policy="ensure")
    assert counters.promotions > 24
    assert np.median(difference(ensured, fp4)) < 1e-3


def test_a_misspelt_key_stops_the_start_and_is_named(plugin_path: Path) -> None:
    ours = {"dsruntime": {"pol_gib": 1}}
    with (
        pytest.raises(ValueError, match=r"dsruntime\.pol_gib: unknown key"),
        engine(CANARY, additional_config=ours),
    ):
        pass


def test_a_pack_of_other_weights_or_ranks_stops_the_start(
    plugin_path: Path, tmp_path: Path
) -> None:
    other = make_checkpoint(
        tmp_path / "other", layers=4, experts=8, hidden=256, intermediate=256, seed=1
    )
    packs = {
        "made from another checkpoint": build(other, tmp_path).directory,
        "made for 2 ranks, the engine has 1": build(CANARY, tmp_path, tensor_parallel=2).directory,
    }
    for says, pack in packs.items():
        with pytest.raises(Exception, match=says):
            serve(pack, ALL_GIB)
