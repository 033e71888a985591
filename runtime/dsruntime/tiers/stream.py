"""Rows of one layer on their way through scratch: prompts use more than the cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from dsruntime.tiers.arena import Wanted

Bytes = npt.NDArray[np.uint8]
Fetch = Callable[[Sequence[Wanted]], dict[int, Exception]]


class Stream:
    """Hands out rows in the order of ``keys``; half of the scratch is read while half is used.

    A row is valid until a key of the batch after the next is asked for, so a layer must take its
    experts in order and be done with one before it asks for another.
    """

    def __init__(
        self, keys: Sequence[int], scratch: Bytes, fetch: Fetch, ahead: ThreadPoolExecutor
    ) -> None:
        """``scratch`` [2 n, row_bytes]; ``fetch`` runs in ``ahead``, one batch at a time."""
        half = len(scratch) // 2
        self._halves = scratch[:half], scratch[half : 2 * half]
        self._batches = [list(keys[at : at + half]) for at in range(0, len(keys), half)]
        self._place = {key: divmod(number, half) for number, key in enumerate(keys)}
        self._fetch = fetch
        self._ahead = ahead
        self._loading: dict[int, Future[dict[int, Exception]]] = {}
        self._errors: dict[int, Exception] = {}
        self._arrived = -1
        self._start(0)

    def __contains__(self, key: int) -> bool:
        return key in self._place

    def row(self, key: int) -> tuple[Bytes, Exception | None]:
        """The row [row_bytes], zeroed where it cannot be read, and why.

        Raises:
            RuntimeError: its batch has been overwritten already.
        """
        batch, at = self._place[key]
        if batch < self._arrived:
            raise RuntimeError(f"row {key} is asked for after row {self._batches[-1][0]}")
        while self._arrived < batch:
            self._arrived += 1
            self._errors |= self._loading.pop(self._arrived).result()
            self._start(self._arrived + 1)
        row: Bytes = self._halves[batch % 2][at]
        error = self._errors.get(key)
        if error is not None:
            row[:] = 0
        return row, error

    def close(self) -> None:
        """Wait for what is still being read: its scratch is about to be used again."""
        for load in self._loading.values():
            load.exception()

    def _start(self, batch: int) -> None:
        if batch < len(self._batches):
            half = self._halves[batch % 2]
            wanted = [Wanted(key, half[at]) for at, key in enumerate(self._batches[batch])]
            self._loading[batch] = self._ahead.submit(self._fetch, wanted)
