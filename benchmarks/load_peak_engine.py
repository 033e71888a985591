"""One start of `load_peak.py`: a real engine in this process, from import to an answered prompt.

Prints `MARK name` when something is done; whoever started this process samples its memory.
Also the worker of the arm that loads as others do (`StagedWorker`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from dsruntime.codec import fp4
from dsruntime.cpu.worker import DeepseekV4Worker
from dsruntime.experts.method import Fp4ExpertsMethod
from dsruntime.experts.weights import Budget
from dsruntime.tiers import worker as tiers_worker
from dsruntime.tiers.method import TieredExpertsMethod
from dsruntime.tiers.worker import TieredWorker

_NAMES = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")


def mark(name: str) -> None:
    """Tell the sampler."""
    print(f"MARK {name}", flush=True)


class NativeWorker(DeepseekV4Worker):
    """FP4 experts through vLLM's own loader."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        mark("loaded")


class StreamedWorker(TieredWorker):
    """Ours."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        mark("loaded")


class StagedMethod(TieredExpertsMethod):
    """The usual way to quantize in vLLM: parameters for the checkpoint's tensors, filled by its
    loader for all layers, then converted layer by layer."""

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        self._experts = args[0] if args else kwargs["num_experts"]
        Fp4ExpertsMethod(self.moe, self._dtype, Budget(0)).create_weights(layer, *args, **kwargs)
        self._tiers.open(self._dtype)  # where the pool comes first, it comes here

    def process_weights_after_loading(self, layer: Any) -> None:
        planes = [
            np.stack([fp4.encode_base(codes) for codes in getattr(layer, name).data.numpy()])
            for name in ("w13_weight", "w2_weight")
        ]
        for name in _NAMES:
            delattr(layer, name)
        del planes  # the same bits are read into place from the pack, as in the other arms
        super().process_weights_after_loading(layer)


class StagedWorker(StreamedWorker):
    """Loads as above."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        ours = tiers_worker.TieredExpertsMethod
        tiers_worker.TieredExpertsMethod = StagedMethod  # type: ignore[misc]
        try:
            super().load_model(*args, **kwargs)
        finally:
            tiers_worker.TieredExpertsMethod = ours  # type: ignore[misc]


def main() -> None:
    """`load_peak_engine.py CHECKPOINT WORKER SETTINGS TOKENS`."""
    checkpoint, worker, settings, tokens = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    mark("imported")
    llm = LLM(
        checkpoint,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=int(tokens),
        max_num_batched_tokens=int(tokens),
        max_num_seqs=1,
        kv_cache_memory_bytes=256 << 20,
        enable_prefix_caching=False,
        worker_cls=f"benchmarks.load_peak_engine.{worker}",
        additional_config={"dsruntime": json.loads(settings)},
    )
    mark("ready")
    prompt = [3 + 7 * i % 900 for i in range(int(tokens) - 8)]
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    mark("answered")


if __name__ == "__main__":
    main()
