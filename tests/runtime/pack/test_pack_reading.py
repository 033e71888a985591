"""A reader never gives a wrong row; verify names bad rows; prune removes only what is old."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsruntime.codec.layout import Correction
from dsruntime.pack import reader as reading
from dsruntime.pack.__main__ import main
from dsruntime.pack.build import Built, build
from dsruntime.pack.checkpoint import open_checkpoint
from dsruntime.pack.errors import CorruptError, StaleError, UnusableError
from dsruntime.pack.generations import list_entries, remove
from dsruntime.pack.identity import DigestCache, checkpoint_digests, require_same
from dsruntime.pack.manifest import read_manifest
from dsruntime.pack.reader import Check, PackReader
from dsruntime.pack.verify import verify
from tests.runtime.pack.support import make_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def built(tmp_path: Path, checkpoint: Path) -> Built:
    return build(checkpoint, tmp_path / "packs")


def flip(path: Path, offset: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found_named_and_mended(
    built: Built, checkpoint: Path, data: st.DataObject
) -> None:
    record = data.draw(st.sampled_from(built.manifest.files))
    row = data.draw(st.integers(0, len(record.rows) - 1))
    byte = data.draw(st.integers(0, record.slot_bytes - 1))
    path = built.directory / record.name
    before = path.read_bytes()
    flip(path, row * record.stride_bytes + byte, 1 << data.draw(st.integers(0, 7)))
    found = verify(built.directory)
    name = reading.row_name(built.manifest.geometry, record, row)
    assert found.bad == (name,)
    assert not found.good
    assert verify(built.directory, repair_from=checkpoint).good
    assert path.read_bytes() == before


def test_the_reader_refuses_a_damaged_row_by_name(built: Built) -> None:
    flip(built.directory / "base.0of1.bin", 4 * built.manifest.files[0].stride_bytes + 7)
    with PackReader(built.directory) as reader:
        reader.base(0, 0)
        with pytest.raises(CorruptError, match=r"base of layers\.1 expert 1 \(rank 0\) is damaged"):
            reader.base(1, 1)


def test_the_reader_makes_a_damaged_row_again_from_the_checkpoint(
    built: Built, checkpoint: Path
) -> None:
    path = built.directory / "correction.0of1.bin"
    whole = path.read_bytes()
    flip(path, 3)
    with PackReader(built.directory, checkpoint=checkpoint) as reader:
        row = reader.correction(0, 0)
    assert row.tobytes() == whole[: len(row)]
    assert path.read_bytes() == whole


def test_a_read_only_pack_still_gives_right_rows(
    built: Built, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built.directory / "base.0of1.bin"
    whole = path.read_bytes()
    flip(path, 0)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reading, "_write_back", refuse)  # tests may run as root
    with PackReader(built.directory, checkpoint=checkpoint) as reader:
        assert reader.base(0, 0).tobytes() == whole[: reader.layout("base").size_bytes]


def test_another_checkpoint_never_mends_a_row(built: Built, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", seed=9)
    flip(built.directory / "base.0of1.bin", 0)
    with (
        PackReader(built.directory, checkpoint=tmp_path / "nowhere") as reader,
        pytest.raises(CorruptError, match=r"base of layers\.0 expert 0 .*absent"),
    ):
        reader.base(0, 0)
    with (
        PackReader(built.directory, checkpoint=other) as reader,
        pytest.raises(CorruptError, match="another checkpoint"),
    ):
        reader.base(0, 0)


def test_rows_are_verified_once_unless_always_is_asked(built: Built) -> None:
    path = built.directory / "base.0of1.bin"
    with (
        PackReader(built.directory) as first,
        PackReader(built.directory, check=Check.ALWAYS) as always,
    ):
        first.base(0, 0)
        always.base(0, 0)
        flip(path, 0)
        first.base(0, 0)
        with pytest.raises(CorruptError):
            always.base(0, 0)


def test_a_standing_slot_carries_the_scales_of_its_base(built: Built) -> None:
    with PackReader(built.directory) as reader:
        slot = reader.standing_slot(1, 2)
        layout = reader.geometry.shape.correction(Correction.SPLIT, own_scales=True)
        views, base = layout.views(slot), reader.layout("base").views(reader.base(1, 2))
        rest = reader.layout("correction").views(reader.correction(1, 2))
        assert np.array_equal(views["scales13"], base["scales13"])
        assert np.array_equal(views["scales2"], base["scales2"])
        assert all(np.array_equal(views[name], plane) for name, plane in rest.items())


def test_a_sidecar_changed_by_hand_is_refused(built: Built) -> None:
    path = built.directory / "pack.json"
    document = json.loads(path.read_text())
    document["files"][0]["rows"][0] = "0" * 32
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="digest"):
        read_manifest(built.directory)
    document["surprise"] = 1
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="surprise"):
        read_manifest(built.directory)


def test_a_shortened_file_is_named(built: Built) -> None:
    os.truncate(built.directory / "base.0of1.bin", 100)
    with pytest.raises(CorruptError, match=r"base\.0of1\.bin has 100 bytes"):
        PackReader(built.directory)


def test_a_rank_or_file_that_the_pack_lacks_is_said(built: Built, checkpoint: Path) -> None:
    with pytest.raises(StaleError, match="for 1 ranks"):
        PackReader(built.directory, rank=1)
    bare = build(checkpoint, built.directory.parent, correction=Correction.NONE)
    with (
        PackReader(bare.directory) as reader,
        pytest.raises(StaleError, match="no correction file"),
    ):
        reader.correction(0, 0)


def test_a_sample_checks_that_many_rows(built: Built) -> None:
    found = verify(built.directory, sample=3)
    assert (found.checked, found.of) == (3, 12)


def test_an_unchanged_checkpoint_is_recognised_without_reading_it(
    built: Built, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_checkpoint(checkpoint)
    monkeypatch.setattr("dsruntime.pack.identity.digest_tensor", None)
    digests = checkpoint_digests(opened, DigestCache(None), known=built.manifest)
    require_same(built.manifest, opened, digests)


def test_a_changed_shard_is_named(built: Built, checkpoint: Path) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[1]
    flip(shard, shard.stat().st_size - 1)
    os.utime(shard, (5, 5))
    opened = open_checkpoint(checkpoint)
    digests = checkpoint_digests(opened, DigestCache(None), known=built.manifest)
    with pytest.raises(StaleError, match=f"{shard.name} differs"):
        require_same(built.manifest, opened, digests)


def test_a_broken_digest_cache_costs_time_and_nothing_else(
    tmp_path: Path, checkpoint: Path
) -> None:
    path = tmp_path / "digests.json"
    path.write_text('{"a')
    opened = open_checkpoint(checkpoint)
    fresh = checkpoint_digests(opened, DigestCache(path))
    assert checkpoint_digests(opened, DigestCache(path)) == fresh
    assert len(json.loads(path.read_text())) == 2


def test_prune_keeps_the_newest_and_what_is_in_use(tmp_path: Path) -> None:
    out = tmp_path / "packs"
    old = build(make_checkpoint(tmp_path / "a", seed=1), out)
    document = json.loads((old.directory / "pack.json").read_text())
    aged = old.manifest.model_copy(update={"built_at": "2020-01-01T00:00:00+00:00"}).sealed()
    (old.directory / "pack.json").write_text(aged.model_dump_json())
    new = build(make_checkpoint(tmp_path / "b", seed=2), out)
    (out / ".building-000000000000").mkdir()
    assert document["source"]["identity"] != new.manifest.source.identity
    with PackReader(old.directory):
        assert [e.path.name for e in list_entries(out) if e.old] == [".building-000000000000"]
    marked = [e for e in list_entries(out) if e.old]
    assert {e.path for e in marked} == {old.directory, out / ".building-000000000000"}
    remove(marked)
    assert [p.name for p in out.glob("pack-*")] == [new.directory.name]


def test_the_command_line_reports_as_json_and_errors_in_one_line(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--digest-cache", str(tmp_path / "digests.json")]
    machine = ["--format", "json", "--progress", "json", *cache]
    argv = ["build", "--checkpoint", str(checkpoint), "--out", str(tmp_path / "o"), *machine]
    assert main(argv) == 0
    said = capsys.readouterr()
    pack = json.loads(said.out)["pack"]
    progress = [json.loads(text)["progress"] for text in said.err.splitlines()]
    assert progress[-1]["done"] == progress[-1]["total"] > 0
    flip(Path(pack) / "base.0of1.bin", 0)
    assert main(["verify", pack, *machine]) == 1
    assert json.loads(capsys.readouterr().out)["bad"] == ["base of layers.0 expert 0 (rank 0)"]
    assert main(["inspect", str(tmp_path / "nowhere"), *machine]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert "pack.json cannot be read" in error["message"]
    assert error["remedy"]


def test_prune_asks_before_it_removes(
    built: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = built.directory.parent
    left = out / ".building-000000000000"
    left.mkdir()
    monkeypatch.setattr("sys.stdin.readline", lambda: "n\n", raising=False)
    assert main(["prune", str(out), "--format", "json"]) == 0
    assert left.exists()
    assert not json.loads(capsys.readouterr().out)["removed"]
    assert main(["prune", str(out), "--yes"]) == 0
    assert not left.exists()
    with pytest.raises(UnusableError):
        read_manifest(left)
