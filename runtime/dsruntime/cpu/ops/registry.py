"""How a portable operator takes the place of one that vLLM's CPU build lacks.

vLLM calls its C++ kernels as ``torch.ops._C.<name>``; the AVX2 and AVX-512 builds have none of the
DeepSeek-V4 ones. Each function decorated with `portable` carries the schema vLLM calls it by, and
`define_missing` defines those that are not there. A build that has a kernel keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

NAMESPACE = "_C"
"""vLLM's namespace for compiled kernels."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class PortableOp:
    """One operator: its schema as vLLM calls it, the torch version, and its shapes."""

    name: str
    schema: str
    cpu: Callable[..., Any]
    meta: Callable[..., Any]


PORTABLE: dict[str, PortableOp] = {}
_fragments: list[torch.library.Library] = []  # a Library undoes its definitions when collected


def _no_output(*_args: Any, **_kwargs: Any) -> None:
    """Shapes of an operator that only writes into its arguments."""


def portable(schema: str, meta: Callable[..., Any] = _no_output) -> Callable[[F], F]:
    """Register the decorated function as the torch version of ``schema``.

    ``schema`` is a torch schema (``name(Tensor x, ...) -> Tensor``) with mutated arguments marked;
    ``meta`` computes output shapes, for operators that are traced.
    """

    def register(function: F) -> F:
        name = schema.split("(", 1)[0]
        PORTABLE[name] = PortableOp(name, schema, function, meta)
        return function

    return register


def define_missing(namespace: str = NAMESPACE) -> list[str]:
    """Define every portable operator that ``torch.ops.<namespace>`` lacks; the names defined.

    Idempotent: what an earlier call (or the build) defined is left alone.
    """
    existing = getattr(torch.ops, namespace)
    missing = [op for op in PORTABLE.values() if not hasattr(existing, op.name)]
    if not missing:
        return []
    fragment = torch.library.Library(namespace, "FRAGMENT")
    _fragments.append(fragment)
    for op in missing:
        fragment.define(op.schema)
        fragment.impl(op.name, op.cpu, "CPU")
        fragment.impl(op.name, op.meta, "Meta")
    return [op.name for op in missing]
