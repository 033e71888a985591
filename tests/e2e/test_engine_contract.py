"""Contracts with the pinned engine: what dsctl says of it is what its own code says.

The CUDA build is fetched once (330 MB, kept in the cache); `DSCTL_CUDA_WHEEL` names one that is
unpacked already.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsctl.engine.environment import environment_for
from dsctl.engine.lockfile import read_lock
from dsctl.errors import DsctlError
from dsctl.model.profile import Knob, Profile, Source
from dsctl.paths import user_paths
from dsctl.planning.catalog import load_profile
from dsctl.planning.geometry import geometry_of, on_rank
from dsctl.planning.kvcache import KvTable, kv_table
from dsctl.planning.validate import Asked, ask, cuda_wheel, judge, request_for


@pytest.fixture(scope="module")
def engine() -> Asked:
    environment = environment_for(read_lock("cpu"), user_paths())
    if not environment.is_ready():
        pytest.skip("the engine's environment is not made yet (`dsctl env build`)")
    return Asked(environment.python, ())


@pytest.fixture(scope="module")
def cuda(engine: Asked) -> Asked:
    given = os.environ.get("DSCTL_CUDA_WHEEL")
    try:
        unpacked = Path(given) if given else cuda_wheel(engine.python, lambda _: None)
    except DsctlError as error:
        pytest.skip(error.message)
    return Asked(engine.python, (unpacked,))


def with_flag(profile: Profile, **values: Any) -> Profile:
    knobs = {key: Knob(value=value, source=Source.USER) for key, value in values.items()}
    return profile.model_copy(update={"knobs": {**profile.knobs, **knobs}})


@pytest.mark.engine
def test_a_flag_the_cpu_engine_does_not_know_is_caught(engine: Asked) -> None:
    request = request_for(load_profile("cpu-canary"))
    request["env"] = {"VLLM_CPU_OMP_THREAD_BIND": "auto"}
    request["argv"] += ["--swap-space", "4"]
    proof = judge(load_profile("cpu-canary"), ask(engine, request))
    assert proof.outcome == "fail"
    assert "the engine does not know VLLM_CPU_OMP_THREAD_BIND" in proof.faults
    assert any("--swap-space" in fault for fault in proof.faults)


@pytest.mark.engine
@pytest.mark.slow
def test_the_kv_table_and_the_dense_weights_are_the_engines_own(cuda: Asked) -> None:
    profile = load_profile("single96-resident", {"max_model_len": "131072"})
    profile = profile.model_copy(
        update={"env": {}, "engine": profile.engine.model_copy(update={"runtime": False})}
    )
    sizes = [1 << 32, 5 << 32]
    answer = ask(cuda, request_for(profile, kv_bytes=sizes))
    assert answer["errors"] == []
    said, table = answer["kv"], kv_table(profile.model.geometry, "0.32.0", "cuda")
    same(said, table)
    for point in said["capacity"]:
        in_flight = said["in_flight_tokens"]
        assert table.capacity(point["bytes"], 131_072, in_flight)[0] == point["tokens"]
    assert table.request_bytes(131_072, said["in_flight_tokens"]) == said["one_request_bytes"]
    geometry = geometry_of(None, profile.model.geometry)
    assert said["dense_bytes"] == on_rank(geometry.dense, 1)
    experts = geometry.layers * geometry.experts * geometry.fp4_expert_bytes
    assert said["expert_bytes"] == experts


@pytest.mark.engine
@pytest.mark.slow
def test_the_draft_finds_its_kernels_in_the_pinned_flashinfer(cuda: Asked) -> None:
    # Building the draft's attention asks FlashInfer's dispatch table for top_k=192 on SM120.
    profile = load_profile("dual96-dspark")
    knobs = {k: v for k, v in profile.knobs.items() if not k.endswith("_backend")}
    profile = profile.model_copy(update={"knobs": knobs})
    answer = ask(cuda, request_for(profile, kv_bytes=[1 << 33]))
    assert answer["errors"] == []
    assert answer["resolved"]["draft"]["tokens"] == 5
    same(answer["kv"], kv_table(profile.model.geometry, "0.32.0", "cuda"))


def same(said: dict[str, Any], table: KvTable) -> None:
    assert said["bytes_per_block"] == table.bytes_per_block
    groups = [(g["block_size"], g["window"] or 0) for g in said["groups"]]
    assert groups == [(g.block_size, g.window) for g in table.groups]


@pytest.mark.engine
@pytest.mark.slow
def test_an_attention_backend_of_a_fork_is_caught(cuda: Asked) -> None:
    profile = with_flag(load_profile("dual96-native"), attention_backend="B12X_MLA_SPARSE")
    proof = judge(profile, ask(cuda, request_for(profile)))
    assert proof.outcome == "fail"
    assert any("B12X_MLA_SPARSE" in fault for fault in proof.faults)
