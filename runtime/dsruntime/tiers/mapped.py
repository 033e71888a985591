"""Base rows read in place from the pack, mapped into memory: no copy, and no slot.

The system's page cache decides what of it is in memory. On a CPU that is the cheapest way to serve
a layer that is rarely worth a slot; a GPU would read it over the bus each time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dsruntime.pack.reader import PackReader

Bytes = npt.NDArray[np.uint8]


class PackMap:
    """The base file of one rank, mapped once for all layers read from it.

    A row's checksum is verified when it is first asked for. One that fails is taken from the reader
    instead, which makes it again from the checkpoint where it can, and kept in memory: the file may
    be on a disk that cannot be written.
    """

    def __init__(self, reader: PackReader) -> None:
        record = reader.manifest.file("base", reader.rank)
        self._reader = reader
        self._record = record
        self._path = reader.directory / record.name
        self._file = os.open(self._path, os.O_RDONLY)
        # copy on write, though nobody writes: torch warns of arrays that it may not write to
        self._rows: Bytes = np.memmap(
            self._path, np.uint8, "c", shape=(len(record.rows), record.stride_bytes)
        )
        self._verified = np.zeros(len(record.rows), bool)
        self._mended: dict[int, Bytes] = {}

    def check(self, keys: list[int]) -> dict[int, Exception]:
        """Make sure of these rows; what is wrong with which.

        The size of the file is looked at each time: to touch a page beyond the end of a truncated
        one would end the process with SIGBUS. (Who truncates it in the moment after still does.)
        """
        from dsruntime.pack.errors import CorruptError, PackError
        from dsruntime.pack.reader import row_digest

        size = os.fstat(self._file).st_size
        if size < self._record.size_bytes:
            cut = CorruptError(
                f"{self._path} has been truncated to {size} bytes while it is served from, "
                f"expected {self._record.size_bytes}",
                remedy="build it again with `dsctl pack build`, then restart",
            )
            return {key: cut for key in keys if key not in self._mended}
        layout = self._reader.layout("base")
        errors: dict[int, Exception] = {}
        for key in keys:
            if self._verified[key]:
                continue
            if row_digest(layout, self._rows[key]) != self._record.rows[key]:
                try:
                    self._mended[key] = self._reader.base(
                        *divmod(key, self._reader.geometry.experts)
                    )
                except (PackError, OSError) as error:
                    errors[key] = error
                    continue
            self._verified[key] = True
        return errors

    def row(self, key: int) -> Bytes:
        """A checked row; a view of the file."""
        mended = self._mended.get(key)
        return self._rows[key] if mended is None else mended

    def close(self) -> None:
        """Release the file; the mapping goes with its last view."""
        os.close(self._file)
