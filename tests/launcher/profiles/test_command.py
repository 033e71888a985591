"""From a profile to the exact command line."""

from __future__ import annotations

import json
from pathlib import Path

from dsctl.engine.base import EngineCommand
from dsctl.engine.command import engine_command, flag
from dsctl.model.endpoint import Endpoint
from dsctl.planning.catalog import load_profile


def command(name: str, **overrides: str) -> EngineCommand:
    profile = load_profile(name, overrides)
    return engine_command(profile, endpoint=Endpoint(port=8123), checkpoint=Path("/models/ds4"))


def value_of(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_canary_is_served_on_loopback_under_its_name() -> None:
    argv = command("cpu-canary").argv
    assert argv[:3] == ("vllm", "serve", "/models/ds4")
    assert value_of(argv, "--served-model-name") == "deepseek-v4-canary"
    assert value_of(argv, "--host") == "127.0.0.1"
    assert value_of(argv, "--port") == "8123"
    assert "--enforce-eager" in argv


def test_kv_space_is_never_given_in_two_ways() -> None:
    env = command("cpu-canary").env
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


def test_a_socket_replaces_host_and_port() -> None:
    argv = engine_command(
        load_profile("cpu-canary"), endpoint=Endpoint(uds="/run/e.sock"), checkpoint=Path("m")
    ).argv
    assert value_of(argv, "--uds") == "/run/e.sock"
    assert "--port" not in argv


def test_the_draft_is_verified_by_exact_rejection_sampling() -> None:
    draft = json.loads(value_of(command("dual96-dspark").argv, "--speculative-config"))
    assert draft == {
        "method": "dspark",
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
    }
    assert "--speculative-config" not in command("dual96-native").argv


def test_peer_copies_off_switches_off_both_users_of_them() -> None:
    off = command("dual96-native")
    assert "--disable-custom-all-reduce" in off.argv
    assert off.env["NCCL_P2P_DISABLE"] == "1"
    on = command("dual96-native", peer_to_peer="on")
    assert "--disable-custom-all-reduce" not in on.argv
    assert "NCCL_P2P_DISABLE" not in on.env


def test_runtime_knobs_reach_the_plugin_and_nothing_else() -> None:
    argv = command("single96-resident", pool_gib="7").argv
    told = json.loads(value_of(argv, "--additional-config"))
    assert told["dsruntime"]["pool_gib"] == 7
    assert told["dsruntime"]["pool_allocation"] == "last"
    assert not any(word.startswith("--pool") for word in argv)
    assert "--additional-config" not in command("dual96-native").argv


def test_false_becomes_the_engines_negative() -> None:
    assert flag("async_scheduling", False) == ["--no-async-scheduling"]
    assert flag("async_scheduling", True) == ["--async-scheduling"]
    assert flag("max_num_seqs", 4) == ["--max-num-seqs", "4"]


def test_the_community_image_keeps_its_own_program() -> None:
    argv = command("dual96-community-image").argv
    assert argv[:4] == ("/opt/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve")
    assert argv[5:9] == ("--served-model-name", "deepseek-v4-flash", "latest", "/latest")
    assert value_of(argv, "--attention-backend") == "B12X_MLA_SPARSE"
