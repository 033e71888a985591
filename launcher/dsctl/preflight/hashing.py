"""`--deep`: sha256 of every shard, remembered by size, time and inode, so that it is done once."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path

from dsctl.files import write_atomically
from dsctl.paths import Paths
from dsctl.progress import Rate, Reporter

_BLOCK_BYTES = 16 << 20
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def _cache_file(paths: Paths) -> Path:
    return paths.cache / "checkpoint-sha256.json"


def _key(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def hash_shards(directory: Path, paths: Paths, report: Reporter | None) -> dict[str, str]:
    """sha256 of every `*.safetensors` file by name; files that look unchanged are not read again.

    The cache is written after each file, so that an interrupted run goes on where it stopped.
    """
    files = sorted(directory.glob("*.safetensors"))
    known = _read_cache(paths)
    todo = sum(f.stat().st_size for f in files if _key(f) not in known)
    rate = Rate(time.monotonic)
    done = 0
    hashes = {}
    for file in files:
        key = _key(file)
        if key not in known:
            sha = hashlib.sha256()
            with file.open("rb", buffering=0) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    sha.update(block)
                    done += len(block)
                    if report is not None:
                        report(
                            rate.update("hashing the checkpoint", float(done), float(todo), "bytes")
                        )
            known[key] = sha.hexdigest()
            paths.cache.mkdir(parents=True, exist_ok=True)
            write_atomically(_cache_file(paths), json.dumps(known) + "\n")
        hashes[file.name] = known[key]
    return hashes


def _read_cache(paths: Paths) -> dict[str, str]:
    try:
        found = json.loads(_cache_file(paths).read_text())
        return {str(k): str(v) for k, v in found.items() if _SHA256.match(str(v))}
    except (OSError, ValueError, AttributeError):
        return {}


def expected_hashes(directory: Path) -> dict[str, str]:
    """sha256 of files as the hub gave them at download: by name, from the marks it leaves.

    `hf download --local-dir` writes `.cache/huggingface/download/NAME.metadata`: commit, etag,
    time; the etag of a large file is its sha256. `SHA256SUMS` beside the files counts as well.
    """
    expected: dict[str, str] = {}
    marks = directory / ".cache" / "huggingface" / "download"
    for mark in marks.glob("*.safetensors.metadata"):
        lines = mark.read_text().splitlines()
        if len(lines) > 1 and _SHA256.match(lines[1].strip()):
            expected[mark.name.removesuffix(".metadata")] = lines[1].strip()
    sums = directory / "SHA256SUMS"
    if sums.is_file():
        for line in sums.read_text().splitlines():
            value, _, name = line.partition(" ")
            if _SHA256.match(value):
                expected[name.strip().lstrip("*")] = value
    return expected


def revision_of(directory: Path) -> str | None:
    """The commit the checkpoint was downloaded at, from the hub's marks or the snapshot's name."""
    for mark in sorted((directory / ".cache" / "huggingface" / "download").glob("*.metadata")):
        lines = mark.read_text().splitlines()
        if lines and re.fullmatch(r"[0-9a-f]{40}", lines[0].strip()):
            return lines[0].strip()
    name = directory.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{40}", name) else None
