"""Checkpoints on disk: whole ones pass, each kind of damage is named, hashes are made once."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dsctl.host.collect import collect
from dsctl.model.finding import Status
from dsctl.model.profile import Knob, Profile, Source
from dsctl.paths import Paths
from dsctl.planning.catalog import load_profile
from dsctl.preflight import checks, hashing
from dsctl.preflight.checkpoint import INDEX, inspect
from dsctl.preflight.registry import CHECKS, CheckContext, Outcome, apply

checks.load()

HOSTS = Path(__file__).parents[2] / "hosts"
REVISION = "9e165c30e2704aec5d9d593cce3eebd58bbef1cb"


def write_shard(path: Path, tensors: dict[str, int]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "dspark_block_size": 5,
        "dspark_target_layer_ids": [40, 41, 42],
    }
    (directory / "config.json").write_text(json.dumps(config))
    shards = {
        "model-1.safetensors": {"embed.weight": 64, "layers.0.ffn.w1": 32},
        "model-2.safetensors": {f"mtp.{n}.norm.weight": 16 for n in range(3)},
    }
    for name, tensors in shards.items():
        write_shard(directory / name, tensors)
    weight_map = {t: name for name, tensors in shards.items() for t in tensors}
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return directory


def context_for(directory: Path, name: str = "dual96-dspark", **more: Any) -> CheckContext:
    profile: Profile = load_profile(name, {"checkpoint": str(directory)})
    knobs = {k: Knob(value=v, source=Source.USER) for k, v in more.pop("knobs", {}).items()}
    profile = profile.model_copy(update={"knobs": {**profile.knobs, **knobs}})
    facts = collect(HOSTS / "workstation-dual-healthy")
    return CheckContext(facts, profile, files=Path("/"), **more)


def ask(check: str, context: CheckContext) -> Outcome:
    return apply(CHECKS[check], context)


def test_a_whole_checkpoint_is_good(checkpoint: Path) -> None:
    context = context_for(checkpoint)
    for check in ("model.checkpoint", "model.draft-weights", "model.speculative-config"):
        assert ask(check, context).status is Status.PASS, check


def test_a_shard_shorter_than_its_header_demands_is_named_and_fetched_again(
    checkpoint: Path,
) -> None:
    shard = checkpoint / "model-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    found = ask("model.checkpoint", context_for(checkpoint))
    assert found.status is Status.FAIL
    assert "model-1.safetensors has" in found.summary
    assert "hf download" in found.remedy
    assert "model-1.safetensors" in found.remedy
    assert REVISION in found.remedy


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "model-2.safetensors").unlink(), "model-2.safetensors is missing"),
        (lambda d: (d / "model-2.safetensors").write_bytes(b"x"), "no safetensors file"),
        (lambda d: (d / "model-2.safetensors").write_bytes(b"\xff" * 64), "inside its header"),
        (lambda d: (d / INDEX).write_text("{"), "not an index"),
        (lambda d: (d / "config.json").write_text("{"), "config.json, line 1"),
        (lambda d: (d / "config.json").write_text('{"architectures": ["X"]}'), "names X"),
        (lambda d: write_shard(d / "model-1.safetensors", {"embed.weight": 8}), "does not hold"),
        (lambda d: (d / "config.json").unlink(), "holds no checkpoint"),
    ],
)
def test_each_kind_of_damage_is_named(checkpoint: Path, damage: Any, says: str) -> None:
    damage(checkpoint)
    found = ask("model.checkpoint", context_for(checkpoint))
    assert found.status is Status.FAIL
    assert says in found.summary


def test_where_there_is_none_it_may_lie_elsewhere(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    remedy = ask("model.checkpoint", context_for(checkpoint)).remedy
    assert "hf download" in remedy
    assert "or `--set checkpoint=DIR` if you have it" in remedy


def test_a_draft_that_is_not_in_the_checkpoint_fails(checkpoint: Path) -> None:
    write_shard(checkpoint / "model-2.safetensors", {"other": 16})
    (checkpoint / INDEX).unlink()
    assert ask("model.draft-weights", context_for(checkpoint)).status is Status.FAIL


@pytest.mark.parametrize(
    ("knobs", "name", "says"),
    [
        ({"draft_tokens": 7}, "dual96-dspark", "blocks of 5"),
        ({"draft_tokens": 3}, "single96-resident", "beside resident planes"),
        (
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
            "dual96-dspark",
            "method 'mtp'",
        ),
    ],
)
def test_speculation_that_the_checkpoint_was_not_made_for_fails(
    checkpoint: Path, knobs: dict[str, Any], name: str, says: str
) -> None:
    found = ask("model.speculative-config", context_for(checkpoint, name, knobs=knobs))
    assert found.status is Status.FAIL
    assert says in found.summary


def test_the_revision_is_read_from_the_marks_of_a_download(checkpoint: Path) -> None:
    marks = checkpoint / ".cache" / "huggingface" / "download"
    marks.mkdir(parents=True)
    assert ask("model.revision", context_for(checkpoint)).status is Status.SKIP
    (marks / "config.json.metadata").write_text(f"{REVISION}\netag\n1\n")
    assert ask("model.revision", context_for(checkpoint)).status is Status.PASS
    (marks / "config.json.metadata").write_text(f"{'7' * 40}\netag\n1\n")
    assert ask("model.revision", context_for(checkpoint)).status is Status.WARN


def test_deep_finds_a_changed_byte_and_reads_nothing_twice(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(data=tmp_path, state=tmp_path, cache=tmp_path / "cache", config=tmp_path)
    sums = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}"
        for p in checkpoint.glob("*.safetensors")
    ]
    (checkpoint / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    context = context_for(checkpoint, deep=True, paths=paths)
    assert "every sha256 as published" in ask("model.checkpoint", context).summary

    reads: list[float] = []
    hashing.hash_shards(checkpoint, paths, lambda progress: reads.append(progress.done))
    assert reads == []  # size, time and inode are as before

    shard = checkpoint / "model-1.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    found = ask("model.checkpoint", context)
    assert found.status is Status.FAIL
    assert "model-1.safetensors is not what was published" in found.summary


def test_an_inspection_reads_headers_only(checkpoint: Path) -> None:
    found = inspect(checkpoint)
    assert set(found.tensors) == {"embed.weight", "layers.0.ffn.w1"} | {
        f"mtp.{n}.norm.weight" for n in range(3)
    }
    assert found.problems == ()


# Packs


def write_pack(directory: Path, shards: Path, ranks: int = 1) -> None:
    directory.mkdir()
    (directory / "base.0of1.bin").write_bytes(bytes(100))
    manifest = {
        "format_version": 1,
        "tensor_parallel": ranks,
        "source": {
            "shards": [
                {"name": p.name, "size_bytes": p.stat().st_size}
                for p in shards.glob("*.safetensors")
            ]
        },
        "files": [{"name": "base.0of1.bin", "size_bytes": 100}],
    }
    (directory / "pack.json").write_text(json.dumps(manifest))


def packed(checkpoint: Path, pack: Path) -> CheckContext:
    return context_for(checkpoint, "single96-resident", knobs={"pack_dir": str(pack)})


def test_a_pack_of_this_checkpoint_is_used(checkpoint: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "pack", checkpoint)
    context = packed(checkpoint, tmp_path / "pack")
    assert ask("pack.present", context).status is Status.PASS
    assert ask("pack.identity", context).status is Status.PASS


def test_without_a_pack_the_start_says_that_it_quantizes_and_what_that_takes(
    checkpoint: Path, tmp_path: Path
) -> None:
    found = ask("pack.present", packed(checkpoint, tmp_path / "pack"))
    assert found.status is Status.WARN
    assert "minutes" in found.detail
    assert "GiB" in found.detail
    assert "dsctl pack build" in found.remedy


def test_a_cut_off_pack_and_one_of_another_checkpoint_are_told_apart(
    checkpoint: Path, tmp_path: Path
) -> None:
    write_pack(tmp_path / "pack", checkpoint)
    context = packed(checkpoint, tmp_path / "pack")
    write_shard(checkpoint / "model-1.safetensors", {"embed.weight": 65})
    found = ask("pack.identity", context)
    assert found.status is Status.FAIL
    assert "model-1.safetensors" in found.summary
    (tmp_path / "pack" / "base.0of1.bin").write_bytes(b"")
    assert "base.0of1.bin has 0 bytes" in ask("pack.present", context).summary


def test_a_pack_for_two_cards_does_not_serve_one(checkpoint: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "pack", checkpoint, ranks=2)
    assert ask("pack.identity", packed(checkpoint, tmp_path / "pack")).status is Status.FAIL
