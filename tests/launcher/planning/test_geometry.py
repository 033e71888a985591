"""Sizes of a checkpoint: formulas, headers, and files that are damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.errors import ConfigError
from dsctl.paths import shipped
from dsctl.planning.geometry import geometry_of, on_rank
from dsctl.planning.headers import read_header, read_headers
from dsctl.planning.units import GIB, MIB

MODEL = "deepseek-v4-flash-0731"


def safetensors(
    path: Path, tensors: dict[str, tuple[str, list[int], int]], *, cut: int = 0
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(at)
    path.write_bytes(data[: len(data) - cut])


def test_dense_weights_are_those_the_engine_creates_to_the_byte() -> None:
    # Sums of vLLM 0.32.0's model built without memory: parameters and buffers but routed experts.
    geometry = geometry_of(None, MODEL)
    assert on_rank(geometry.dense, 1) / GIB == pytest.approx(8.72977277264, abs=1e-10)
    assert on_rank(geometry.dense, 2) / GIB == pytest.approx(5.223754491657, abs=1e-10)


def test_the_draft_adds_what_the_engine_creates_beside_shared_tables() -> None:
    geometry = geometry_of(None, MODEL)
    shared = 2 * 2 * 129_280 * 4096  # it names embeddings and head too; they are the target's
    rope = 1_048_576 * 64 * 4
    created = round(2.782830622047186 * GIB)
    assert on_rank(geometry.draft_dense, 1) == created - shared - rope


def test_experts_have_the_published_sizes() -> None:
    geometry = geometry_of(None, MODEL)
    assert geometry.fp4_expert_bytes == 12.75 * MIB
    assert geometry.w2_expert_bytes == 6.75 * MIB
    assert geometry.slot_bytes == 12 * MIB
    assert geometry.layers * geometry.experts * geometry.w2_expert_bytes == 72.5625 * GIB
    assert geometry.checkpoint_bytes == pytest.approx(167e9, rel=0.005)


def test_headers_win_over_formulas(tmp_path: Path) -> None:
    config = shipped("profiles", "geometry", "canary.config.json")
    (tmp_path / "config.json").write_text(config.read_text())
    safetensors(
        tmp_path / "model.safetensors",
        {
            "layers.0.ffn.experts.0.w1.weight": ("I8", [100], 100),
            "layers.0.attn.wq_b.weight": ("F8_E4M3", [50], 50),
            "mtp.0.attn.wq_b.weight": ("F8_E4M3", [7], 7),
        },
    )
    geometry = geometry_of(tmp_path, "canary")
    rope = 2 * 4096 * 64 * 4
    assert geometry.source == "safetensors headers"
    assert on_rank(geometry.dense, 1) == 50 + rope
    assert geometry.checkpoint_bytes == 157
    assert geometry.draft_layers == 1


def test_config_serves_until_the_weights_are_there(tmp_path: Path) -> None:
    source = shipped("profiles", "geometry", f"{MODEL}.config.json")
    (tmp_path / "config.json").write_text(source.read_text())
    here = geometry_of(tmp_path, MODEL)
    assert "config.json" in here.source
    assert on_rank(here.dense, 1) == on_rank(geometry_of(None, MODEL).dense, 1)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "header"),
        (b"abc", "header"),
        (struct.pack("<Q", 1 << 40), "longer than the file"),
        (struct.pack("<Q", 2) + b"[]", "not one of safetensors"),
        (struct.pack("<Q", 4) + b"null", "not one of safetensors"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "not one of safetensors"),
        (struct.pack("<Q", 3) + b"\xff\xfe\x00", "not one of safetensors"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "model-00001.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_header(path)
    assert "model-00001.safetensors is damaged" in caught.value.message
    assert what in caught.value.message


def test_a_shard_that_lost_its_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors(path, {"a": ("U8", [64], 64)}, cut=1)
    with pytest.raises(ConfigError, match="where its header promises"):
        read_headers(tmp_path)


@given(st.binary(max_size=64))
def test_no_bytes_make_the_reader_fall_over(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("shard") / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):  # 64 bytes cannot hold a valid one
        read_header(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_hidden_layers": 3}', "\x00"])
def test_a_config_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        geometry_of(tmp_path, MODEL)
