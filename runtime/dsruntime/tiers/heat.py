"""How hot each expert was, kept from one start to the next, so that the pool is warm when ready.

One file for each model's content: heat is about the model, so another coding of the pack, another
size of the pool or number of ranks begins with the same. The ranks decide the same moves, so their
heats are equal; the first of them writes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsruntime.pack.files import write_atomically
from dsruntime.tiers.policy import Heats

logger = logging.getLogger("dsruntime.tiers")
_DIGITS = 5
"""Significant ones that are kept."""

Heat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class HeatRecord(BaseModel):
    """What a heat file says: [experts] heats for each layer by its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    model: str
    layers: dict[str, tuple[Heat, ...]]


def heat_path(directory: Path | None, model: str) -> Path:
    """Where the heat of a model (its content's identity) is kept."""
    if directory is None:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        directory = Path(home) / "dsctl" / "heat"
    return directory / f"heat-{model[:16]}.json"


class HeatFile:
    """Heats [layers * experts] of one model, on disk."""

    def __init__(self, path: Path, model: str, layers: tuple[str, ...], experts: int) -> None:
        self.path = path
        self._model = model
        self._layers = layers
        self._experts = experts

    def read(self) -> Heats | None:
        """None: there is no such file, or none that can be used, which is said in the log."""
        try:
            record = HeatRecord.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._cold(f"cannot be read ({error.strerror})")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            return self._cold(f"is damaged: {where}: {first['msg']}")
        if record.model != self._model:
            return self._cold("is of another model")
        nobody = (0.0,) * self._experts
        rows = [record.layers.get(name, nobody) for name in self._layers]
        if any(len(row) != self._experts for row in rows):
            return self._cold(f"is not for {self._experts} experts a layer")
        return np.array(rows, np.float64).reshape(-1)

    def write(self, heat: Heats) -> None:
        """Whole or not at all. A directory that cannot be written costs a warm start, no more."""
        rows = np.array([float(f"{value:.{_DIGITS}g}") for value in heat.tolist()])
        rows = rows.reshape(len(self._layers), self._experts)
        record = HeatRecord(
            model=self._model,
            layers={
                name: tuple(row.tolist()) for name, row in zip(self._layers, rows, strict=True)
            },
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, record.model_dump_json() + "\n")
        except OSError as error:
            logger.warning("heat is not kept: %s: %s", self.path, error.strerror)

    def _cold(self, why: str) -> Heats | None:
        logger.warning("%s %s; the pool starts cold", self.path, why)
        return None


class HeatKeeper:
    """Writes heat now and then, in a thread of its own: a step never waits for it."""

    def __init__(
        self, file: HeatFile, every_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._every_s = every_s
        self._now = now
        self._last = now()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dsruntime-heat")
        self._writing: Future[None] | None = None

    def after_step(self, heat: Callable[[], Heats]) -> None:
        """Write if it is time; heats are values that nobody changes, so they can be handed over."""
        if self._now() - self._last < self._every_s:
            return
        if self._writing is not None and not self._writing.done():
            return
        self._last = self._now()
        self._writing = self._writer.submit(self._file.write, heat())

    def close(self, heat: Heats) -> None:
        """Write the last of it, and wait."""
        self._writer.shutdown(wait=True, cancel_futures=True)
        if heat.any():
            self._file.write(heat)
