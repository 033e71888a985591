"""How much of a checkpoint has been read: pure, and on a process that really maps and reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.supervise.samplers.checkpoint import (
    CheckpointProgress,
    CheckpointReader,
    Shard,
    Use,
    shards_of,
)
from dsctl.supervise.samplers.pagecache import drop
from dsctl.supervise.samplers.reader import Unreadable

MIB = 1 << 20
SHARD_BYTES = 32 * MIB
SHARDS = tuple(Shard(f"/m/{i}", str(i), i, 1000 * 4096) for i in range(4))
SIZE = SHARDS[0].size_bytes


def mapped(share: float) -> list[Use]:
    return [Use(frozenset(range(round(256 * share))), mapped=True)]


def test_a_mapped_file_counts_by_its_pages_and_whole_when_it_is_let_go() -> None:
    progress = CheckpointProgress(SHARDS)
    assert progress.update({}, None).read_bytes == 0
    assert progress.update({"/m/0": mapped(0.5)}, None).read_bytes == SIZE // 2
    done = progress.update({"/m/1": mapped(0.25)}, None)
    assert done.read_bytes == SIZE + SIZE // 4
    assert done.finished == ("/m/0",)
    last = progress.update({}, None)
    assert last.read_bytes == 2 * SIZE, "the others have not been looked at yet"


def test_files_before_one_in_use_were_too_quick_to_be_seen() -> None:
    done = CheckpointProgress(SHARDS).update({"/m/2": mapped(0.5)}, None)
    assert done.read_bytes == 2 * SIZE + SIZE // 2
    assert done.finished == ("/m/0", "/m/1")


def test_ranks_fill_a_file_together() -> None:
    both = [
        Use(frozenset(range(128)), mapped=True),
        Use(frozenset(range(96, 192)), mapped=True),
    ]
    done = CheckpointProgress(SHARDS).update({"/m/0": both}, None)
    assert done.read_bytes == SIZE * 192 // 256


def test_pages_that_the_kernel_takes_back_stay_read() -> None:
    progress = CheckpointProgress(SHARDS)
    progress.update({"/m/0": mapped(0.75)}, None)
    assert progress.update({"/m/0": mapped(0.25)}, None).read_bytes == SIZE * 3 // 4


def test_a_read_file_counts_by_its_position() -> None:
    done = CheckpointProgress(SHARDS).update({"/m/0": [Use(position=SIZE // 4)]}, None)
    assert (done.read_bytes, done.how) == (SIZE // 4, "positions in open files")


def test_what_is_read_ahead_of_a_mapped_file_does_not_count() -> None:
    progress = CheckpointProgress(SHARDS)
    ahead = {"/m/0": mapped(0.5), "/m/1": [Use(position=SIZE)], "/m/2": [Use(position=SIZE // 2)]}
    assert progress.update(ahead, None).read_bytes == SIZE // 2
    done = progress.update({"/m/0": mapped(0.75), "/m/3": [Use(position=9)]}, None)
    assert (done.read_bytes, done.finished) == (SIZE * 3 // 4, ())


def test_direct_reads_at_offsets_are_counted_by_the_kernel() -> None:
    progress = CheckpointProgress(SHARDS)
    assert progress.update({"/m/0": [Use()]}, 7_000_000).read_bytes == 0
    done = progress.update({"/m/0": [Use()]}, 7_000_000 + SIZE // 2)
    assert (done.read_bytes, done.how) == (SIZE // 2, "reads of its processes")


LOOKS = st.lists(
    st.dictionaries(st.sampled_from([s.path for s in SHARDS]), st.floats(0, 1), max_size=3),
    max_size=12,
)


@given(looks=LOOKS)
def test_progress_never_goes_back_and_never_beyond_the_whole(looks: list[dict[str, float]]) -> None:
    """Law: whatever is seen in whatever order."""
    progress = CheckpointProgress(SHARDS)
    before = 0
    for look in looks:
        now = progress.update({path: mapped(share) for path, share in look.items()}, None)
        assert before <= now.read_bytes <= now.total_bytes
        before = now.read_bytes


READER = """
import mmap, os, sys
how, *paths = sys.argv[1:]
for path in paths:
    file = open(path, "rb", buffering=0)
    size = os.fstat(file.fileno()).st_size
    view = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if how == "map" else None
    for share in (0.25, 0.5, 1.0):
        if view is not None:
            for at in range(0, int(size * share), 4096):
                view[at]
        else:
            while file.tell() < int(size * share):
                file.read(1 << 16)
        print(path, share, flush=True)
        sys.stdin.readline()
    if view is not None:
        view.close()
    file.close()
print("end", flush=True)
sys.stdin.readline()
"""


@contextmanager
def reading(how: str, paths: list[Path]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, how, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["map", "read"])
def test_a_process_that_maps_or_reads_is_followed_within_a_few_percent(
    how: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"model-{i}-of-10.safetensors" for i in (1, 2, 10)]
    for path in paths:
        path.write_bytes(os.urandom(4096) * (SHARD_BYTES // 4096))
    shards = shards_of([tmp_path])
    assert [s.name for s in shards] == [p.name for p in paths], "10 comes after 2"
    with reading(how, paths) as process:
        reader = CheckpointReader(shards, pids=lambda: (process.pid,), samples=lambda: ())
        assert process.stdout is not None
        assert process.stdin is not None
        for done in range(3):
            for share in (0.25, 0.5, 1.0):
                process.stdout.readline()
                seen = reader()
                # A fault brings in the whole folio of the page cache, of up to 2 MiB.
                true = (done + share) * SHARD_BYTES
                assert seen.read_bytes == pytest.approx(true, abs=4 * MIB)
                process.stdin.write("\n")
                process.stdin.flush()
        process.stdout.readline()
        assert reader().read_bytes == 3 * SHARD_BYTES
        assert len(reader().finished) == 3


def test_a_checkpoint_of_links_is_followed_to_its_files(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "abc123"
    blob.parent.mkdir()
    blob.write_bytes(b"x" * MIB)
    link = tmp_path / "snapshot" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(blob)
    shards = shards_of([tmp_path / "snapshot"])
    assert [(s.name, s.size_bytes) for s in shards] == [("model.safetensors", MIB)]
    with reading("map", [link]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = CheckpointReader(shards, pids=lambda: (process.pid,), samples=lambda: ())
        assert reader().read_bytes > 0


def test_no_weights_and_no_right_to_look_are_reasons(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no weight files"):
        shards_of([tmp_path])
    shard = Shard("/m/a", "a", 1, 4096)
    reader = CheckpointReader((shard,), pids=lambda: (1,), samples=lambda: (), proc=str(tmp_path))
    with pytest.raises(Unreadable, match="another user"):
        reader()


def test_dropping_the_cache_of_a_file_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights" * 1000)
    dropped = drop([str(path), str(tmp_path / "gone")])
    assert (dropped.files, dropped.size_bytes) == (1, 7000)
    assert dropped.failed == (str(tmp_path / "gone"),)
    assert path.read_bytes() == b"weights" * 1000
