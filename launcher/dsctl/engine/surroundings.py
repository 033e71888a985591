"""The surroundings of a `process` engine: a clean environment around the profile's command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.engine.base import EngineCommand
from dsctl.engine.environment import Environment
from dsctl.model.endpoint import Endpoint
from dsctl.paths import PROGRAMS, Paths, make_writable

if TYPE_CHECKING:
    from dsctl.model.profile import Profile

#: What the engine gets from the user's own environment: nothing that could change what it computes,
#: no token, no proxy.
_INHERITED = ("HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR")

#: Caches that libraries of the engine write, by the variable that moves them.
_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute",
    "DG_JIT_CACHE_DIR": "deepgemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_HOME": "hf",
    "NUMBA_CACHE_DIR": "numba",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "XDG_CACHE_HOME": "xdg",
}


def process_command(
    profile: Profile,
    *,
    endpoint: Endpoint,
    checkpoint: Path,
    environment: Environment,
    runtime: Path | None,
    paths: Paths,
    gpus: str | None = None,
) -> EngineCommand:
    """The profile's command with its program and its whole environment resolved; `gpus` is
    CUDA_VISIBLE_DEVICES."""
    from dsctl.engine.command import engine_command

    command = engine_command(profile, endpoint=endpoint, checkpoint=checkpoint)
    program = environment.scripts / command.argv[0]
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    programs = [environment.scripts, *map(Path, PROGRAMS)]
    if environment.cuda is not None:  # what compiles kernels takes this one, not the machine's
        env["CUDA_HOME"] = str(environment.cuda)
        programs.insert(1, environment.cuda / "bin")
    env["PATH"] = os.pathsep.join(map(str, programs))
    caches = paths.engine_caches / environment.directory.name
    for variable, name in _CACHES.items():
        env[variable] = str(make_writable(caches / name, "engine cache"))
    if runtime is not None:
        env["PYTHONPATH"] = str(runtime)
    env["PYTHONUNBUFFERED"] = "1"
    if gpus is not None:
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpus}
    return EngineCommand(argv=(str(program), *command.argv[1:]), env=env | command.env)
