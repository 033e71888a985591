"""Benchmarks on disk: one JSON file, written whole."""

from __future__ import annotations

from pathlib import Path

from dsctl.bench.schema import BenchResult
from dsctl.errors import ConfigError
from dsctl.files import read_text, write_atomically


def save_bench(result: BenchResult, path: Path) -> None:
    """Write the result; a reader never sees half of it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, result.model_dump_json())
    except OSError as error:
        raise ConfigError(
            f"--out {path}: {error.strerror or error}", remedy="choose another file"
        ) from None


def load_bench(path: Path) -> BenchResult:
    """Read a result.

    Raises:
        ConfigError: missing or not one of ours; names the key.
    """
    from pydantic import ValidationError

    try:
        return BenchResult.model_validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ConfigError(
            f"{path}, key {key}: {first['msg']}", remedy="give a file of `dsctl bench run --out`"
        ) from None
