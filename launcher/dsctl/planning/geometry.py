"""The geometry of a DeepSeek-V4 checkpoint, and the bytes its parts take on one rank.

Taken from the checkpoint's own safetensors headers, else from its config.json, else from the facts
that ship with dsctl (`profiles/geometry/`). Shapes are those the engine's model code creates
(vLLM 0.32.0, `models/deepseek_v4/nvidia/model.py`); a contract test builds that model without
memory and compares the sums byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsctl.errors import ConfigError
from dsctl.paths import shipped
from dsctl.planning.headers import Stored, read_headers

_ROUTED = re.compile(r"(^|\.)experts\.\d+\.")
_DRAFT = "mtp."
_REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_hash_layers",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "sliding_window",
    "max_position_embeddings",
    "compress_ratios",
)
#: Weights per scale of the FP4 format (e8m0, one byte).
_FP4_BLOCK = 32


@dataclass(frozen=True)
class Part:
    """Some bytes of weights; `sharded` ones are divided among tensor-parallel ranks."""

    name: str
    nbytes: int
    sharded: bool


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model. Byte counts are of the whole model; `on_rank` divides them."""

    source: str
    config: dict[str, Any]
    dense: tuple[Part, ...]
    draft_dense: tuple[Part, ...]
    draft_layers: int
    checkpoint_bytes: int

    @property
    def layers(self) -> int:
        """Decoder layers, without the draft's."""
        return int(self.config["num_hidden_layers"])

    @property
    def experts(self) -> int:
        """Routed experts per layer."""
        return int(self.config["n_routed_experts"])

    @property
    def top_k(self) -> int:
        """Routed experts a token visits per layer."""
        return int(self.config["num_experts_per_tok"])

    @property
    def expert_weights(self) -> int:
        """Weights of one routed expert: gate, up and down."""
        return 3 * int(self.config["hidden_size"]) * int(self.config["moe_intermediate_size"])

    @property
    def scale_bytes(self) -> int:
        """Scales of one expert, shared by its 2-bit and its FP4 form."""
        return self.expert_weights // _FP4_BLOCK

    @property
    def fp4_expert_bytes(self) -> int:
        """One expert as the checkpoint has it: 4-bit codes and scales."""
        return self.expert_weights // 2 + self.scale_bytes

    @property
    def w2_expert_bytes(self) -> int:
        """One expert with 2-bit codes, the same scales."""
        return self.expert_weights // 4 + self.scale_bytes

    @property
    def slot_bytes(self) -> int:
        """One slot of the correction pool over a resident base, whose scales it shares."""
        return self.expert_weights // 2

    def ratios(self) -> tuple[int, ...]:
        """Compression ratio of each decoder layer (0: window only)."""
        return tuple(self.config["compress_ratios"][: self.layers])


def on_rank(parts: tuple[Part, ...], ranks: int) -> int:
    """Bytes of `parts` on one of `ranks` tensor-parallel ranks."""
    return sum(-(-p.nbytes // ranks) if p.sharded else p.nbytes for p in parts)


def geometry_of(checkpoint: Path | None, name: str) -> Geometry:
    """Geometry of the checkpoint in that directory, or of the shipped facts called `name`.

    Raises:
        ConfigError: neither is there; a config.json or a safetensors file is damaged.
    """
    if checkpoint is not None and (checkpoint / "config.json").is_file():
        config = _read_config(checkpoint / "config.json")
        stored = read_headers(checkpoint)
        try:
            if stored:
                return from_headers(config, stored)
            return from_config(config, f"{checkpoint}/config.json")
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{checkpoint}/config.json: not the configuration of a DeepSeek-V4 model ({error})",
                remedy="download config.json again, or name another checkpoint",
            ) from None
    try:
        return _shipped_geometry(name)
    except _NotShippedError:
        raise ConfigError(
            f"no checkpoint at {checkpoint} and no shipped geometry '{name}'",
            remedy="name the checkpoint's directory with `--set checkpoint=DIR`",
        ) from None


class _NotShippedError(Exception):
    pass


@cache
def _shipped_geometry(name: str) -> Geometry:
    """Computed once: `auto` plans ten profiles with one or two geometries."""
    try:
        path = shipped("profiles", "geometry", f"{name}.config.json")
    except ConfigError:
        raise _NotShippedError from None
    return from_config(_read_config(path), f"shipped facts of {name}")


def from_headers(config: dict[str, Any], stored: dict[str, Stored]) -> Geometry:
    """Geometry with the byte counts of the tensors that are really there."""
    formulas = from_config(config, "")
    dense = [t for n, t in stored.items() if not _ROUTED.search(n) and not n.startswith(_DRAFT)]
    draft = [t for n, t in stored.items() if not _ROUTED.search(n) and n.startswith(_DRAFT)]
    layers = {n.split(".")[1] for n in stored if n.startswith(_DRAFT)}
    return Geometry(
        source="safetensors headers",
        config=config,
        dense=_measured(formulas.dense, sum(t.nbytes for t in dense)),
        draft_dense=_measured(formulas.draft_dense, sum(t.nbytes for t in draft)),
        draft_layers=len(layers),
        checkpoint_bytes=sum(t.nbytes for t in stored.values()),
    )


def from_config(config: dict[str, Any], source: str) -> Geometry:
    """Geometry from the shapes that config.json implies."""
    draft_layers = _draft_layers(config)
    geometry = Geometry(
        source=source,
        config=config,
        dense=tuple(_dense(config)),
        draft_dense=tuple(_draft(config, draft_layers)) if draft_layers else (),
        draft_layers=draft_layers,
        checkpoint_bytes=0,
    )
    weights = on_rank(geometry.dense, 1) - rope_bytes(config) + on_rank(geometry.draft_dense, 1)
    experts = (geometry.layers + draft_layers) * geometry.experts * geometry.fp4_expert_bytes
    return Geometry(
        **{**vars(geometry), "checkpoint_bytes": weights + experts},
    )


def rope_bytes(config: dict[str, Any]) -> int:
    """Cosine and sine tables the engine makes: FP32, all positions, plain and compressed rope."""
    return 2 * int(config["max_position_embeddings"]) * int(config.get("qk_rope_head_dim", 64)) * 4


def _measured(formulas: tuple[Part, ...], stored_bytes: int) -> tuple[Part, ...]:
    """The formulas' parts, corrected by what the headers say they sum up to."""
    made_by_engine = sum(p.nbytes for p in formulas if p.name == "rope tables")
    return (
        *formulas,
        Part("headers", stored_bytes - sum(p.nbytes for p in formulas) + made_by_engine, False),
    )


def _draft_layers(config: dict[str, Any]) -> int:
    if "dspark_block_size" not in config:
        return 0
    return int(config.get("n_mtp_layers") or 3)


def _linear(rows: int, columns: int) -> int:
    """FP8 weights with one e8m0 scale per 128x128 block."""
    return rows * columns + -(-rows // 128) * -(-columns // 128)


def _dense(c: dict[str, Any]) -> Iterator[Part]:
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    yield Part("embeddings", 2 * vocab * hidden, True)
    yield Part("head", 2 * vocab * hidden, True)
    yield Part("rope tables", rope_bytes(c), False)
    yield Part("final norm", 2 * hidden, False)
    yield Part("stream head", _stream_head(c), False)
    for layer, ratio in enumerate(c["compress_ratios"][: c["num_hidden_layers"]]):
        yield from _layer(c, ratio, hashed=layer < c["num_hash_layers"])


def _stream_head(c: dict[str, Any]) -> int:
    streams: int = c["hc_mult"]
    hidden: int = c["hidden_size"]
    return 4 * (streams * streams * hidden + streams + 1)


def _layer(c: dict[str, Any], ratio: int, *, hashed: bool) -> Iterator[Part]:
    hidden, head_dim, heads = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
    inner, out_rank = c["moe_intermediate_size"], c["o_lora_rank"] * c["o_groups"]
    per_group = heads * head_dim // c["o_groups"]
    shared = c.get("n_shared_experts", 1)
    streams = c["hc_mult"]
    mixes = 2 * streams + streams * streams
    yield Part("query", _linear(heads * head_dim, c["q_lora_rank"]), True)
    yield Part("output", _linear(out_rank, per_group) + _linear(hidden, out_rank), True)
    yield Part(
        "shared expert",
        shared * (_linear(2 * inner, hidden) + _linear(hidden, inner)),
        True,
    )
    yield Part("down", _linear(c["q_lora_rank"] + head_dim, hidden), False)
    yield Part("sinks", 4 * heads, True)
    yield Part("norms", 2 * (2 * hidden + c["q_lora_rank"] + head_dim), False)
    yield Part("router", 2 * c["n_routed_experts"] * hidden, False)
    routing = (
        4 * c["vocab_size"] * c["num_experts_per_tok"] if hashed else 4 * c["n_routed_experts"]
    )
    yield Part("routing", routing, False)
    yield Part("streams", 2 * 4 * (mixes * streams * hidden + mixes + 3), False)
    if ratio:
        yield Part("compressor", _compressor(c, ratio, head_dim), False)
    if ratio == 4:
        queries = _linear(c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
        weights = 2 * c["index_n_heads"] * hidden
        keys = _compressor(c, ratio, c["index_head_dim"])
        yield Part("indexer", queries + weights + keys, False)


def _compressor(c: dict[str, Any], ratio: int, dim: int) -> int:
    """BF16 projection to keys and gates (twice where windows overlap), FP32 positions, a norm."""
    wide = 2 if ratio == 4 else 1
    hidden: int = c["hidden_size"]
    return 2 * (2 * wide * dim * hidden) + 4 * ratio * wide * dim + 2 * dim


def _draft(c: dict[str, Any], layers: int) -> Iterator[Part]:
    """The DSpark draft; embeddings, head and rope tables are the target's own."""
    hidden, rank = c["hidden_size"], c["dspark_markov_rank"]
    targets = len(c["dspark_target_layer_ids"])
    for _ in range(layers):
        yield from _layer(c, 0, hashed=False)
    yield Part("main projection", _linear(hidden, targets * hidden), False)
    yield Part("context projection", _linear(layers * c["head_dim"], hidden), False)
    yield Part("markov head", 2 * 2 * c["vocab_size"] * rank, False)
    yield Part("confidence", 4 * (hidden + rank), False)
    yield Part("norms", 2 * 2 * hidden, False)
    yield Part("stream head", _stream_head(c), False)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", remedy="download the checkpoint's config.json again"
        ) from None
    missing = [key for key in _REQUIRED if key not in config] if isinstance(config, dict) else []
    if not isinstance(config, dict) or missing:
        what = f"key '{missing[0]}' is missing" if missing else "is no mapping"
        raise ConfigError(
            f"{path}: {what}; this is no DeepSeek-V4 checkpoint",
            remedy="name the directory of a DeepSeek-V4 checkpoint with `--set checkpoint=DIR`",
        )
    return config
