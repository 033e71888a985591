"""What one pass of the model over a step's tokens met: whom it needed, missed, could not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
Flags = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.int64]


class Mode(Enum):
    """How a pass treats an expert whose base is not on the device.

    ``REPLAY``: it is left out and noted, and the pass is repeated when it has been fetched: all a
    captured graph can do. ``STREAM``: it is fetched within the layer, through scratch.
    """

    REPLAY = "replay"
    STREAM = "stream"


@dataclass
class Pass:
    """Filled by the layers in order; experts are numbered ``layer * experts + expert``.

    Attributes:
        needed: [keys] asked for by some token.
        missing: left out of the sums of these tokens, because it was not there.
        unreadable: left out, or nonsense, because it cannot be read; and why.
    """

    mode: Mode
    needed: Flags
    missing: dict[int, Tokens] = field(default_factory=dict)
    unreadable: dict[int, Exception] = field(default_factory=dict)
    _wrong: list[Tokens] = field(default_factory=list)

    @classmethod
    def over(cls, keys: int, mode: Mode) -> Pass:
        """One that has met nobody yet."""
        return cls(mode, np.zeros(keys, bool))

    def fail(self, key: int, tokens: Tokens, error: Exception) -> None:
        """``key`` cannot be read: what these tokens get is wrong."""
        self.unreadable[key] = error
        self._wrong.append(tokens)

    @property
    def wrong(self) -> frozenset[int]:
        """Tokens whose result must not be used: an expert of theirs could not be read."""
        lost = [tokens for key, tokens in self.missing.items() if key in self.unreadable]
        return frozenset(int(token) for tokens in (*lost, *self._wrong) for token in tokens)

    @property
    def left_out(self) -> dict[int, int]:
        """Experts left out of each token's sums, by token; unreadable ones are not counted."""
        found: dict[int, int] = {}
        for key, tokens in self.missing.items():
            if key not in self.unreadable:
                for token in tokens.tolist():
                    found[token] = found.get(token, 0) + 1
        return found


def tokens_of(ids: Ids, expert: int) -> Tokens:
    """Rows of ``ids`` [T, k] that name the expert."""
    found: Tokens = np.flatnonzero((ids == expert).any(axis=1))
    return found
