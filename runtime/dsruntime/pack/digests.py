"""One digest for everything: BLAKE3, 16 bytes, in hex."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3  # type: ignore[import-not-found,unused-ignore]

DIGEST_BYTES = 16


def digest(data: Any) -> str:
    """Of one contiguous buffer. Releases the GIL; 3.3 GB/s on one AVX2 core."""
    return str(blake3(data).hexdigest(DIGEST_BYTES))


def combined(digests: list[str]) -> str:
    """Of a sequence of digests: a row's from its segments', a shard's from its tensors'."""
    return digest(bytes.fromhex("".join(digests)))


def canonical(value: Any) -> bytes:
    """JSON in one spelling: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Running:
    """A digest fed piece by piece."""

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: Any) -> None:
        self._state.update(data)

    def result(self) -> str:
        return str(self._state.hexdigest(DIGEST_BYTES))
