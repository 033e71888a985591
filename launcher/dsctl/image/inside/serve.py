"""Entrypoint of the engine's container: `vllm serve ARGUMENTS`, caches named, umask set.

Caches of compiled kernels belong to one image and one kind of device: they lie below
`/cache/IMAGE-DEVICE`, so that a new image, or another card, never reads what an old one wrote.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path("/cache")
#: Variables that move the caches of the engine's libraries, and the directory each gets.
CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute",
    "DG_JIT_CACHE_DIR": "deepgemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_HOME": "hf",
    "HOME": "home",
    "NUMBA_CACHE_DIR": "numba",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "XDG_CACHE_HOME": "xdg",
}
#: The socket is for the group: the gateway is in it.
UMASK = 0o007


def device_key(driver: Path) -> str:
    """What the kernels are compiled for: `cpu`, or the models of the GPUs that are visible."""
    models = set()
    for information in sorted(driver.glob("gpus/*/information")):
        found = re.search(r"^Model:\s*(.+)$", information.read_text(errors="replace"), re.M)
        models.add(found[1].strip() if found else "unknown")
    if not models:
        return "cpu"
    name = re.sub(r"[^a-z0-9]+", "-", "+".join(sorted(models)).lower()).strip("-")
    return f"{name[:40]}-{hashlib.sha256(repr(sorted(models)).encode()).hexdigest()[:8]}"


def cache_environment(environment: Mapping[str, str], root: Path, device: str) -> dict[str, str]:
    """The cache variables to set: those that the environment does not have already.

    HOME counts as unset: Docker sets it from the passwd entry.
    """
    image = environment.get("DSCTL_IMAGE", "unknown")
    tree = root / f"{image}-{device}"
    return {
        name: str(tree / directory)
        for name, directory in CACHES.items()
        if name == "HOME" or name not in environment
    }


def driver_environment(environment: Mapping[str, str], maps: Path) -> dict[str, str]:
    """Where the driver's libcuda lies, for Triton: it would ask `ldconfig`, which is not here."""
    if "TRITON_LIBCUDA_PATH" in environment:
        return {}
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}  # no card: nothing will ask
    found = re.search(r"\s(/\S+)/libcuda\.so\S*$", maps.read_text(), re.M)
    return {"TRITON_LIBCUDA_PATH": found[1]} if found else {}


def main(arguments: list[str]) -> None:
    """Name the caches, make them, become the engine."""
    os.umask(UMASK)
    caches = cache_environment(os.environ, ROOT, device_key(Path("/proc/driver/nvidia")))
    for directory in caches.values():
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"serve: {directory} cannot be made: {error.strerror}; is /cache writable?")
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", *arguments]
    driver = driver_environment(os.environ, Path("/proc/self/maps"))
    os.execve(sys.executable, command, {**os.environ, **caches, **driver})


if __name__ == "__main__":
    main(sys.argv[1:])
