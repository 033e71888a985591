"""A pack holds the checkpoint bit for bit, however often its build was killed."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsruntime.codec import fp4
from dsruntime.codec.layout import Correction, Matrix
from dsruntime.pack import build as builder
from dsruntime.pack import files
from dsruntime.pack.build import Built, build
from dsruntime.pack.checkpoint import open_checkpoint
from dsruntime.pack.convert import to_fp4
from dsruntime.pack.errors import CheckpointError, NoSpaceError, UnusableError
from dsruntime.pack.progress import Progress
from dsruntime.pack.reader import PackReader
from tests.runtime.pack.support import make_checkpoint

SPLIT, PLAIN, NONE = Correction.SPLIT, Correction.PLAIN, Correction.NONE


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def contents(built: Built) -> dict[str, bytes]:
    """The data files and the digests that the sidecar has for them."""
    found = {p.name: p.read_bytes() for p in built.directory.glob("*.bin")}
    rows = [record.rows for record in built.manifest.files]
    return found | {"rows": repr(rows).encode(), "id": built.manifest.source.identity.encode()}


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build for two ranks must give, whatever happened before it."""
    return contents(build(checkpoint, tmp_path_factory.mktemp("whole"), tensor_parallel=2))


def source_codes(checkpoint: Path, layer: str, expert: int, matrix: str) -> fp4.Bytes:
    """FP4 codes of a matrix, straight from the shards."""
    opened = open_checkpoint(checkpoint)
    source = next(s for k, s in opened.experts.items() if k == (layer, expert, matrix))
    raw = []
    for tensor in source.tensors:
        path = next(s.path for s in opened.shards if s.name == tensor.shard)
        at = slice(tensor.offset, tensor.offset + tensor.size_bytes)
        raw.append(np.frombuffer(path.read_bytes()[at], np.uint8))
    return to_fp4(source, raw).codes


@pytest.mark.parametrize("source", ["fp4", "fp8", "nvfp4", "bf16"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("correction", [SPLIT, PLAIN])
def test_base_and_correction_of_all_ranks_give_the_checkpoint_back(
    tmp_path: Path, source: str, ranks: int, correction: Correction
) -> None:
    made_from = make_checkpoint(tmp_path / "c", source=source, layers=2, experts=2)
    built = build(made_from, tmp_path / "o", tensor_parallel=ranks, correction=correction)
    parts: dict[str, list[np.ndarray]] = {"w1": [], "w2": [], "w3": []}
    for rank in range(ranks):
        with PackReader(built.directory, rank) as reader:
            base = reader.layout("base").views(reader.base(1, 1))
            rest = reader.layout("correction").views(reader.correction(1, 1))
        for end in ("13", "2"):
            if correction is PLAIN:
                codes = rest[f"fp4_{end}"]
                assert np.array_equal(fp4.encode_base(codes), base[f"codes{end}"])
            else:
                planes = (base[f"codes{end}"], rest[f"low{end}"], rest[f"high{end}"])
                codes = fp4.decode_split(*planes)
            if end == "13":
                gate, up = np.split(codes, 2)
                parts["w1"].append(gate)
                parts["w3"].append(up)
            else:
                parts["w2"].append(codes)
    for matrix, shares in parts.items():
        whole = np.concatenate(shares, axis=1 if matrix == "w2" else 0)
        assert np.array_equal(whole, source_codes(made_from, "layers.1", 1, matrix))


def test_draft_layers_come_after_the_others_when_asked_for(tmp_path: Path) -> None:
    made_from = make_checkpoint(tmp_path / "c", draft=True)
    assert build(made_from, tmp_path / "o").manifest.model.layers == ("layers.0", "layers.1")
    with_draft = build(made_from, tmp_path / "o", draft=True)
    assert with_draft.manifest.model.layers == ("layers.0", "layers.1", "mtp.0")


def test_rows_start_at_pages_and_a_resident_start_needs_no_correction_file(
    tmp_path: Path, checkpoint: Path
) -> None:
    built = build(checkpoint, tmp_path, correction=NONE)
    assert [p.name for p in built.directory.glob("*.bin")] == ["base.0of1.bin"]
    assert all(record.stride_bytes % 4096 == 0 for record in built.manifest.files)
    with PackReader(built.directory) as reader:
        assert len(reader.base(0, 0)) == reader.geometry.shape.base.size_bytes


def killed_after(checkpoint: Path, out: Path, budget: int, threads: int) -> bool:
    """Build in a child that dies by SIGKILL after `budget` written bytes, inside a write."""
    child = os.fork()
    if child == 0:  # no pytest, no cleanup in here: either the build ends or the child is killed
        left = budget
        real = os.pwrite

        def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
            nonlocal left
            if len(data) > left:
                real(descriptor, data[:left], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            left -= len(data)
            return real(descriptor, data, offset)

        os.pwrite = pwrite  # type: ignore[assignment]
        builder.COMMIT_BYTES = 4096
        try:
            build(checkpoint, out, tensor_parallel=2, threads=threads)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(0, 140_000), min_size=1, max_size=4), threads=st.integers(1, 3))
def test_a_build_killed_at_any_byte_goes_on_to_the_same_bytes(
    tmp_path: Path, checkpoint: Path, expected: dict[str, bytes], kills: list[int], threads: int
) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for budget in kills:
        killed = killed_after(checkpoint, out, budget, threads)
        packs = list(out.glob("pack-*"))
        assert len(packs) == (0 if killed else 1)  # nothing looks finished that is not
        if not killed:
            break
    assert contents(build(checkpoint, out, tensor_parallel=2)) == expected
    assert not list(out.glob(".building-*"))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 4000), junk=st.binary(max_size=40))
def test_a_torn_journal_costs_work_and_nothing_else(
    tmp_path: Path, checkpoint: Path, expected: dict[str, bytes], cut: int, junk: bytes
) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    assert killed_after(checkpoint, out, 95_000, 1)
    (journal,) = out.glob(".building-*/journal.jsonl")
    journal.write_bytes(journal.read_bytes()[:cut] + junk)
    assert contents(build(checkpoint, out, tensor_parallel=2)) == expected


def test_resuming_skips_what_was_done(tmp_path: Path, checkpoint: Path) -> None:
    assert killed_after(checkpoint, tmp_path, 95_000, 1)
    said: list[Progress] = []
    build(checkpoint, tmp_path, tensor_parallel=2, report=said.append)
    assert any(p.what.startswith("going on after") for p in said)


def test_a_shard_replaced_between_two_tries_is_packed_anew(tmp_path: Path) -> None:
    made_from = make_checkpoint(tmp_path / "c", seed=1)
    out = tmp_path / "out"
    out.mkdir()
    assert killed_after(made_from, out, 95_000, 1)
    make_checkpoint(made_from, seed=2)  # same headers, other weights
    resumed = contents(build(made_from, out, tensor_parallel=2))
    assert resumed == contents(build(made_from, tmp_path / "fresh", tensor_parallel=2))


def test_a_second_build_finds_the_first_ones_pack(tmp_path: Path, checkpoint: Path) -> None:
    first = build(checkpoint, tmp_path)
    again = build(checkpoint, tmp_path)
    assert again.already_there
    assert again.directory == first.directory


def test_copying_touching_and_chmod_leave_the_pack_valid_a_changed_byte_does_not(
    tmp_path: Path, checkpoint: Path
) -> None:
    first = build(checkpoint, tmp_path / "out")
    moved = Path(shutil.copytree(checkpoint, tmp_path / "elsewhere"))
    for path in moved.iterdir():
        path.chmod(0o600)
        os.utime(path, (1, 1))
    assert build(moved, tmp_path / "out").directory == first.directory
    shard = next(moved.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert build(moved, tmp_path / "out").directory != first.directory


def test_of_two_processes_one_builds_and_the_other_waits_and_says_so(
    tmp_path: Path, checkpoint: Path
) -> None:
    argv = [sys.executable, "-m", "dsruntime.pack", "build", "--checkpoint", str(checkpoint)]
    argv += ["--out", str(tmp_path), "--progress", "json", "--format", "json"]
    argv += ["--digest-cache", str(tmp_path / "digests.json")]
    plan = builder.plan_build(open_checkpoint(checkpoint), tensor_parallel=1, correction=SPLIT)
    with files.exclusive(tmp_path / f".lock-{plan.key[:12]}", lambda _: None):
        second = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert f"process {os.getpid()} is building this pack" in second.stderr.readline()
        builder._Build(plan, tmp_path, 1, builder.DigestCache(None), lambda _: None).run()
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert '"already_there": true' in out


def test_a_truncated_shard_is_named_with_what_to_do(tmp_path: Path) -> None:
    made_from = make_checkpoint(tmp_path / "c")
    shard = sorted(made_from.glob("*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size - 100)
    with pytest.raises(CheckpointError, match=rf"{shard.name} is truncated: \d+ bytes, expected"):
        build(made_from, tmp_path / "out")
    os.truncate(shard, 5)
    with pytest.raises(CheckpointError, match=rf"{shard.name} is truncated"):
        build(made_from, tmp_path / "out")


def test_nan_scales_are_refused_by_name(tmp_path: Path) -> None:
    made_from = make_checkpoint(tmp_path / "c", shards=1)
    shard = next(made_from.glob("*.safetensors"))
    opened = open_checkpoint(made_from)
    source = opened.experts["layers.0", 1, Matrix.W2]
    assert source.scale is not None
    with shard.open("r+b") as file:
        file.seek(source.scale.offset)
        file.write(b"\xff")
    with pytest.raises(CheckpointError, match=r"experts\.1\.w2\.weight: 1 blocks .* NaN scale"):
        build(made_from, tmp_path / "out")


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match="49 KiB free"):
        build(checkpoint, tmp_path)
    assert not list(tmp_path.rglob("*.bin"))


def test_a_disk_that_fills_up_gives_one_line_and_the_build_goes_on_later(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, [60_000]

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(NoSpaceError, match=r"no room to write .*\.bin.*No space left"):
            build(checkpoint, tmp_path, tensor_parallel=2)
    assert not list(tmp_path.glob("pack-*"))
    fresh = contents(build(checkpoint, tmp_path / "fresh", tensor_parallel=2))
    assert contents(build(checkpoint, tmp_path, tensor_parallel=2)) == fresh


def test_a_file_size_limit_is_a_clear_line(tmp_path: Path, checkpoint: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(NoSpaceError, match="File too large"):
            build(checkpoint, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_unwritable_place_is_named(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableError, match="file"):
        build(checkpoint, tmp_path / "file" / "out")


def test_peak_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """Peak resident memory of two builds, one five times the other: within 48 MiB."""
    peaks = []
    for layers in (2, 10):
        made_from = make_checkpoint(
            tmp_path / f"c{layers}", layers=layers, experts=8, hidden=1024, intermediate=1024
        )
        program = (
            "import sys; from pathlib import Path; from dsruntime.pack.build import build\n"
            "build(Path(sys.argv[1]), Path(sys.argv[2]), threads=2)\n"
            "print([l for l in open('/proc/self/status') if l.startswith('VmHWM')][0].split()[1])"
        )
        argv = [sys.executable, "-c", program, str(made_from), str(tmp_path / f"o{layers}")]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout) * 1024)
    assert max(peaks) < 2**29
    assert abs(peaks[1] - peaks[0]) < 48 * 2**20


def test_interrupting_leaves_a_journal_to_go_on_from(tmp_path: Path) -> None:
    made_from = make_checkpoint(tmp_path / "c", layers=20, experts=8, hidden=512, intermediate=512)
    argv = [sys.executable, "-m", "dsruntime.pack", "build", "--checkpoint", str(made_from)]
    argv += ["--out", str(tmp_path / "o"), "--threads", "1"]
    argv += ["--digest-cache", str(tmp_path / "digests.json")]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not list((tmp_path / "o").glob(".building-*/journal.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (130, 0)
    assert "Traceback" not in said
    assert build(made_from, tmp_path / "o").manifest.geometry.rows == 160
