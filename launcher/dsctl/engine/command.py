"""From a profile to the exact `vllm serve` command line and environment. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsctl.engine.base import EngineCommand
from dsctl.model.endpoint import Endpoint
from dsctl.model.profile import Profile
from dsctl.planning.knobs import KNOBS

#: DSpark as upstream spells it: exact rejection sampling, which keeps the target's distribution.
_DSPARK = {
    "method": "dspark",
    "draft_sample_method": "probabilistic",
    "rejection_sample_method": "standard",
}

#: Copies between cards through host memory. Both switches are needed: with NCCL's alone the
#: engine's own all-reduce still trusts the driver, and hangs in autotuning on two cards.
_PEERS_OFF = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}

#: Part of our runtime: says on every response that experts may have been left out.
_MARKS_APPROXIMATE = "dsruntime.tiers.marking.MarksApproximate"


def engine_command(
    profile: Profile,
    *,
    endpoint: Endpoint,
    checkpoint: Path,
    extra_env: dict[str, str] | None = None,
) -> EngineCommand:
    """The command of a profile: argv begins with `vllm serve CHECKPOINT`.

    `extra_env` (caches, library paths of where it runs) never overrides the profile's own.
    """
    argv = [*(profile.engine.program or ("vllm", "serve")), str(checkpoint)]
    argv += ["--served-model-name", profile.model.served_name, *profile.model.also_served_as]
    argv += _listen(endpoint)
    for key, knob in profile.knobs.items():
        if KNOBS[key].target == "engine" and key != "additional_config":
            argv += flag(key, knob.value)
    peers_off = profile.value("peer_to_peer", "on") == "off"
    if peers_off:
        argv += flag("disable_custom_all_reduce", True)
    draft = profile.value("draft_tokens", 0)
    if draft:
        argv += flag("speculative_config", {**_DSPARK, "num_speculative_tokens": draft})
    additional = additional_config(profile)
    if additional:
        argv += flag("additional_config", additional)
    if additional.get("dsruntime", {}).get("replay") == "approximate":
        argv += flag("middleware", _MARKS_APPROXIMATE)
    env = {**(extra_env or {}), **{name: _text(knob.value) for name, knob in profile.env.items()}}
    if peers_off:
        env |= _PEERS_OFF
    return EngineCommand(argv=tuple(argv), env=env)


def additional_config(profile: Profile) -> dict[str, Any]:
    """What our plugin is told: the profile's own additional configuration and the runtime knobs."""
    runtime = {
        key: knob.value for key, knob in profile.knobs.items() if KNOBS[key].target == "runtime"
    }
    if runtime.get("experts", "native") == "native":
        runtime = {}
    own = dict(profile.value("additional_config", {}))
    return {**own, **({"dsruntime": runtime} if runtime else {})}


def flag(key: str, value: Any) -> list[str]:
    """One knob as vLLM's flag: `--name value`, `--name` or `--no-name`, JSON for mappings."""
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name] if value else [f"--no-{key.replace('_', '-')}"]
    return [name, _text(value)]


def _listen(endpoint: Endpoint) -> list[str]:
    if endpoint.uds is not None:
        return ["--uds", endpoint.uds]
    return ["--host", endpoint.host, "--port", str(endpoint.port)]


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
