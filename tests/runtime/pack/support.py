"""A generator of small checkpoints with the official names, in every source format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

MATRICES = ("w1", "w2", "w3")


def shapes(hidden: int, intermediate: int) -> dict[str, tuple[int, int]]:
    return {
        "w1": (intermediate, hidden),
        "w3": (intermediate, hidden),
        "w2": (hidden, intermediate),
    }


def write_shard(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """A safetensors file, written from the format's description."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def make_checkpoint(
    directory: Path,
    *,
    layers: int = 2,
    experts: int = 3,
    hidden: int = 64,
    intermediate: int = 128,
    shards: int = 2,
    source: str = "fp4",
    draft: bool = False,
    seed: int = 0,
) -> Path:
    """A checkpoint whose tensors are dealt to shards in turn, so matrix and scale lie apart."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    dealt: list[dict[str, tuple[str, tuple[int, ...], bytes]]] = [{} for _ in range(shards)]
    count = 0

    def deal(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        nonlocal count
        dealt[count % shards][name] = (dtype, shape, data)
        count += 1

    deal("embed.weight", "BF16", (50, hidden), random.bytes(50 * hidden * 2))
    names = [f"layers.{n}" for n in range(layers)] + (["mtp.0"] if draft else [])
    for layer in names:
        deal(f"{layer}.attn.wq_a.weight", "BF16", (8, hidden), random.bytes(16 * hidden))
        for expert in range(experts):
            for matrix, (n, k) in shapes(hidden, intermediate).items():
                stem = f"{layer}.ffn.experts.{expert}.{matrix}"
                for part in _matrix(random, source, n, k):
                    deal(f"{stem}.{part[0]}", *part[1:])
    config = {"model_type": "deepseek_v4", "num_hidden_layers": layers, "hidden_size": hidden}
    (directory / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for number, tensors in enumerate(dealt):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        write_shard(directory / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def _matrix(
    random: np.random.Generator, source: str, n: int, k: int
) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    if source == "fp4":
        scales = random.integers(100, 140, (n, k // 32), dtype=np.uint8)
        return [
            ("weight", "I8", (n, k // 2), random.bytes(n * k // 2)),
            ("scale", "F8_E8M0", (n, k // 32), scales.tobytes()),
        ]
    if source == "bf16":
        values = random.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16
        return [("weight", "BF16", (n, k), values.astype(np.uint16).tobytes())]
    if source == "fp8":
        codes = random.integers(0, 255, (n, k), dtype=np.uint8) & 0xBF
        shape = (-(-n // 128), -(-k // 128))
        scale = random.integers(110, 130, shape, dtype=np.uint8)
        return [
            ("weight", "F8_E4M3", (n, k), codes.tobytes()),
            ("scale", "F8_E8M0", shape, scale.tobytes()),
        ]
    scale = random.integers(40, 80, (n, k // 16), dtype=np.uint8)
    return [
        ("weight", "U8", (n, k // 2), random.bytes(n * k // 2)),
        ("weight_scale", "F8_E4M3", (n, k // 16), scale.tobytes()),
        ("weight_scale_2", "F32", (), np.float32(0.01).tobytes()),
    ]
