"""Phases from log lines of the real engine."""

from __future__ import annotations

import pytest

from dsctl.model.event import Phase
from dsctl.supervise.phases import Sign, advance, read_line

PREFIX = "(EngineCore pid=4711) INFO 12-01 01:02:03 "


@pytest.mark.parametrize(
    ("line", "phase", "message"),
    [
        (
            "(APIServer pid=1) INFO 12-01 [utils.py:1] vLLM API server version 0.32.0",
            None,
            "0.32.0",
        ),
        (PREFIX + "[core.py:1] Initializing a V1 LLM engine (v0.32.0) with config:", None, "core"),
        (
            PREFIX + "[cpu_model_runner.py:1] Starting to load model /m/canary...",
            Phase.LOADING,
            "reads /m/canary",
        ),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 23/46 [00:10<00:10]",
            Phase.LOADING,
            "23 of 46 shards",
        ),
        (PREFIX + "Loading weights took 0.31 seconds", Phase.LOADING, "0.31 s"),
        (
            PREFIX + "Model loading took 87.41 GiB and 252.26 seconds",
            Phase.ALLOCATING,
            "87.41 GiB",
        ),
        (PREFIX + "GPU KV cache size: 863,773 tokens", Phase.ALLOCATING, "863,773"),
        (PREFIX + "Capturing CUDA graphs (mixed prefill-decode):", Phase.COMPILING, "CUDA"),
        (
            PREFIX + "init engine (profile, create kv cache, warmup model) took 3.2 seconds",
            Phase.WARMING,
            "3.2 s",
        ),
        ("(APIServer pid=1) INFO:     Application startup complete.", Phase.WARMING, "up"),
    ],
)
def test_a_line_opens_its_phase(line: str, phase: Phase | None, message: str) -> None:
    sign = read_line(line)
    assert sign is not None
    assert sign.phase is phase
    assert message in sign.message


@pytest.mark.parametrize(
    "line",
    [
        "Using default chat sampling params",
        "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
    ],
)
def test_other_lines_mean_nothing(line: str) -> None:
    assert read_line(PREFIX + line) is None


def test_a_late_line_does_not_set_a_start_back() -> None:
    late = Sign(Phase.LOADING, "loaded", "")
    assert advance(Phase.WARMING, late) is Phase.WARMING
    assert advance(Phase.STARTING, late) is Phase.LOADING
    assert advance(Phase.FAILED, late) is Phase.FAILED
