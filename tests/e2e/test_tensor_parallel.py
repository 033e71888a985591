"""Two ranks on one machine give the answers of the model, and hold half of its experts each.

In FP4, and in 2 bits with corrections that both show in the same step.

Runs in the engine's environment (it makes its own tiny model); skipped where there is no vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from dsruntime.pack.build import build as build_pack
from tests.runtime.support.engine import Answer, agreement
from tests.runtime.support.reference import logprobs, with_fp8_caches
from tests.runtime.support.tiny import TinyShape, build

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROMPT = [(7 * i * i + 3 * i) % 510 + 2 for i in range(300)]

SERVE = """
import json, sys
from pathlib import Path
from tests.runtime.support.engine import answers, engine

if __name__ == "__main__":
    prompt, options = json.loads(sys.argv[2]), json.loads(sys.argv[3])
    tiered = "additional_config" in options
    with engine(Path(sys.argv[1]), tensor_parallel_size=2, **options) as llm:
        for _ in range(2 if tiered else 1):  # the first time, corrections arrive on the way
            answer = answers(llm, [prompt], 20)[0]
        if tiered:
            tables = llm.collective_rpc(lambda worker: worker.tiers.store.pool.table.tolist())
            print("TABLES", json.dumps(tables))
            counted = llm.collective_rpc(lambda worker: worker.tiers.steps.counted.replayed_steps)
            print("REPLAYED", json.dumps(counted))
    print("ANSWER", json.dumps([answer.tokens, answer.prompt_logprobs]))
"""


WORDS = ("ANSWER", "TABLES", "REPLAYED")
ROW_GIB = 3 * 256 * 128 * 9 / 32 / 2**30
"""A rank's half of a base row: 2 bits a weight and a scale byte for each 32."""


def plugin_directory(root: Path) -> Path:
    """Where vLLM finds our plugin, as if the wheel were installed."""
    info = root / "site" / "dsruntime-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dsruntime\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ndsruntime = dsruntime.plugin:register\n"
    )
    return info.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny checkpoint, and the model it is in transformers."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    # a rank's half of the shared expert must be a whole number of 128x128 blocks
    shape = TinyShape(moe_intermediate=256, experts=4, experts_per_token=4, index_topk=512)
    return directory, with_fp8_caches(build(shape, directory))


def served(root: Path, model: Path, options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What two ranks print, by the word before it; and everything they said."""
    script = root / "serve.py"
    script.write_text(SERVE)
    paths = (plugin_directory(root), ROOT / "runtime", ROOT)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "VLLM_PLUGINS": "dsruntime",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function of ours is sent to the workers
        "TORCH_COMPILE_DISABLE": "1",
        "XDG_CACHE_HOME": str(root / "cache"),
    }
    run = subprocess.run(
        [sys.executable, str(script), str(model), json.dumps(PROMPT), json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line.split(" ", 1) for line in run.stdout.splitlines()]
    told = {word: json.loads(rest[0]) for word, *rest in lines if word in WORDS}
    return told, run.stdout + run.stderr


def same_as(reference: Any, answer: Any) -> None:
    """The model's own answer, but for arithmetic."""
    tokens, scores = answer
    result = agreement(Answer(tokens, scores), PROMPT, logprobs(reference, PROMPT + tokens))
    assert result.largest <= 0.1, result
    assert result.regret <= 0.1, result


two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")


@two_cores
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="tp"),
        pytest.param({"enable_expert_parallel": True}, id="tp+ep", marks=pytest.mark.long),
    ],
)
def test_two_ranks_give_the_answers_of_the_model(
    tmp_path: Path, model: tuple[Path, Any], options: dict[str, Any]
) -> None:
    told, said = served(tmp_path, model[0], options)
    assert "ANSWER" in told, said[-20000:]
    same_as(model[1], told["ANSWER"])


@two_cores
def test_two_ranks_correct_the_same_experts_of_their_halves_of_a_pack(
    tmp_path: Path, model: tuple[Path, Any]
) -> None:
    pack = build_pack(model[0], tmp_path, tensor_parallel=2).directory
    ours = {"experts": "w2-resident", "pack_dir": str(pack), "pool_gib": 0.1}
    told, said = served(tmp_path, model[0], {"additional_config": {"dsruntime": ours}})
    assert "TABLES" in told, said[-20000:]
    first, second = told["TABLES"]
    assert first == second
    assert all(slot >= 0 for layer in first for slot in layer), "not all experts were corrected"
    same_as(model[1], told["ANSWER"])


@pytest.mark.long
@two_cores
def test_two_ranks_replay_their_caches_to_the_very_answer_of_resident_experts(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    # two of eight experts a token in four layers: a decode step uses 8 of the 32 rows
    build(TinyShape(moe_intermediate=256, experts=8, experts_per_token=2), model)
    pack = build_pack(model, tmp_path / "packs", tensor_parallel=2).directory
    told = {}
    for experts, more in (("w2-resident", {}), ("w2-cache", {"base_cache_gib": 16.5 * ROW_GIB})):
        place = tmp_path / experts
        place.mkdir()
        ours = {"experts": experts, "pack_dir": str(pack), "pool_gib": 0, **more}
        told[experts], said = served(place, model, {"additional_config": {"dsruntime": ours}})
        assert "ANSWER" in told[experts], said[-20000:]
    first, second = told["w2-cache"]["REPLAYED"]
    assert first == second, "the ranks did not repeat the same steps"
    assert first > 0
    assert told["w2-resident"]["REPLAYED"] == [0, 0]
    assert told["w2-cache"]["ANSWER"] == told["w2-resident"]["ANSWER"]


@two_cores
def test_experts_spread_over_ranks_are_refused_with_2_bits(
    tmp_path: Path, model: tuple[Path, Any]
) -> None:
    options = {
        "enable_expert_parallel": True,
        "additional_config": {"dsruntime": {"experts": "w2-resident"}},
    }
    told, said = served(tmp_path, model[0], options)
    assert told == {}
    assert "cannot spread experts over ranks: drop --enable-expert-parallel" in said
