"""Lets vLLM's CUDA build resolve its configuration on a machine without a GPU.

The compiled extension modules become empty stand-ins and the platform answers as the CUDA one does
on RTX PRO 6000 cards: compute capability 12.0, 95 GiB, two devices. Configuration code, model code
and KV-cache specifications are vLLM's own and run unchanged; no kernel is ever called.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

CAPABILITY = (12, 0)
#: Usable bytes of an RTX PRO 6000 Blackwell as the driver reports them (94.97 GiB).
TOTAL_BYTES = int(94.97 * (1 << 30))
DEVICES = 2

_EXTENSIONS = (
    "_C",
    "_C_stable_libtorch",
    "_moe_C",
    "_moe_C_stable_libtorch",
    "_deepselect_C",
    "_flashkda_C",
    "_flashmla_C",
    "_flashmla_extension_C",
    "_qutlass_C",
    "cumem_allocator",
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
)


#: Questions that configuration code asks of the compiled extension; the wheel is built for sm_120.
_QUERIES = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
    "mxfp4_experts_quant_supported",
)
#: Kernels written in a compiler that is not there; model code only imports their names.
_KERNEL_SOURCES = (
    "vllm.model_executor.kernels.mhc.tilelang_kernels",
    "vllm.third_party.deep_gemm",
)
#: Modules that FlashInfer imports and that its dispatch tables do not need.
_NOT_NEEDED = ("pynvml", "tabulate")


def install() -> None:
    """Make this process see the faked platform; call it before anything of vLLM is imported."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in _EXTENSIONS:
        _stand_in(f"vllm.{name}")
    for name in _NOT_NEEDED:
        if importlib.util.find_spec(name) is None:
            _stand_in(name)
    sys.meta_path.insert(0, _KernelSources())
    _offer_operators()
    import vllm.platforms as platforms

    platforms._current_platform = _platform()
    import vllm.utils.flashinfer as flashinfer

    flashinfer._flashinfer_nvcc_path = lambda: "nvcc"  # the image brings it


def _offer_operators() -> None:
    """Operators that the wheel's compiled modules really have exist, and refuse to compute."""
    import torch

    folder = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    binaries = [path.read_bytes() for path in sorted(folder.glob("*.so"))]
    original = torch._ops._OpNamespace.__getattr__

    def find(namespace: Any, name: str) -> Any:
        try:
            return original(namespace, name)
        except AttributeError:
            wanted = name.encode()
            if "_C" in namespace.name and any(wanted in binary for binary in binaries):
                return _Operator(name)
            raise

    torch._ops._OpNamespace.__getattr__ = find
    register_fake = torch.library.register_fake

    def register(operator: Any, *args: Any, **kwargs: Any) -> Any:
        decorate = register_fake(operator, *args, **kwargs)

        def attempt(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError:  # a stand-in has nothing to be registered with
                return function

        return attempt

    torch.library.register_fake = register


class _Operator:
    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.default = self

    def __call__(self, *args: object, **kwargs: object) -> bool:
        if self.name in _QUERIES:
            return True
        raise RuntimeError(f"{self.name} was called, but this is no GPU")


class _KernelSources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports kernel sources as objects that have every name."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _KERNEL_SOURCES or (name.startswith("vllm.") and name.endswith("_cutedsl")):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return MagicMock(name=spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


def _stand_in(name: str) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
    module.__file__ = f"<stand-in for {name}>"
    if name in _NOT_NEEDED:
        module.__getattr__ = lambda attribute: lambda *args, **kwargs: ""
    sys.modules[name] = module


def _platform() -> Any:
    import torch
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class FakeBlackwell(CudaPlatformBase):
        """The CUDA platform, with the answers of the hardware the profiles are for."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*CAPABILITY)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"

        @classmethod
        def get_device_uuid(cls, device_id: int = 0) -> str:
            return f"GPU-{device_id:08x}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return TOTAL_BYTES

        @classmethod
        def device_count(cls) -> int:
            return DEVICES

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 188

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return False

        @classmethod
        def get_device_numa_node(cls, device_id: int = 0) -> int | None:
            return None

        @classmethod
        def get_all_device_numa_nodes(cls) -> list[int] | None:
            return None

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: DEVICES
    return FakeBlackwell()
