"""The knobs that exist: what `--set` and profiles may name, their types, and where each goes.

An engine knob carries vLLM's own name and becomes the flag of that name. A runtime knob goes to our
plugin through `--additional-config`; a launcher knob is used by dsctl alone.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dsctl.planning.layers import parse_layers

Kind = Literal["int", "float", "bool", "str", "json", "layers"]
Target = Literal["engine", "runtime", "launcher"]

#: vLLM's own suffixes: lower case counts in thousands, upper case in 1024s.
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class KnobSpec:
    """One knob: its type, where it goes, and its bounds (inclusive).

    `words` are values beside those of its type, such as `auto` for a size.
    """

    name: str
    kind: Kind
    target: Target
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """The typed value of `text`, as given to `--set`.

        Raises:
            ValueError: says what is expected.
        """
        if text in self.words:
            return text
        if self.kind == "int":
            return self.check(_integer(text))
        if self.kind == "float":
            return self.check(_number(text, *self.words))
        if self.kind == "bool":
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text.lower() == "true"
        if self.kind == "json":
            try:
                return self.check(json.loads(text))
            except json.JSONDecodeError as error:
                raise ValueError(f"{text!r} is not JSON ({error.msg})") from None
        return self.check(text)

    def check(self, value: Any) -> Any:
        """The value, if its type and bounds are right.

        Raises:
            ValueError: says what is expected.
        """
        if isinstance(value, str) and value in self.words:
            return value
        kinds: dict[Kind, tuple[type, ...]] = {
            "int": (int,),
            "float": (int, float),
            "bool": (bool,),
            "str": (str,),
            "json": (dict, list),
            "layers": (str,),
        }
        if not isinstance(value, kinds[self.kind]) or (
            isinstance(value, bool) and self.kind != "bool"
        ):
            raise ValueError(f"{value!r} is not {' or '.join((_A_KIND[self.kind], *self.words))}")
        if self.kind == "layers" and isinstance(value, str):
            parse_layers(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not one of {', '.join(self.choices)}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
            if self.least is not None and not value >= self.least:
                raise ValueError(f"{value} is below {self.least:g}")
            if self.most is not None and not value <= self.most:
                raise ValueError(f"{value} is above {self.most:g}")
        return value


_A_KIND = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "json": "a mapping or a list",
    "layers": "layers like '0-2,5'",
}


def _number(text: str, *words: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {' or '.join(('a number', *words))}") from None


def _integer(text: str) -> int:
    factor = _SUFFIXES.get(text[-1:], 1)
    digits = text[:-1] if factor != 1 else text
    try:
        return int(digits.replace(",", "")) * factor
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _engine(name: str, kind: Kind, **more: Any) -> KnobSpec:
    return KnobSpec(name, kind, "engine", **more)


def _runtime(name: str, kind: Kind, **more: Any) -> KnobSpec:
    return KnobSpec(name, kind, "runtime", **more)


def _launcher(name: str, kind: Kind, **more: Any) -> KnobSpec:
    return KnobSpec(name, kind, "launcher", **more)


_ALL = (
    _engine("max_model_len", "int", least=1),
    _engine("max_num_seqs", "int", least=1),
    _engine("max_num_batched_tokens", "int", least=1),
    _engine("gpu_memory_utilization", "float", least=0.05, most=1.0),
    _engine("tensor_parallel_size", "int", least=1),
    _engine("kv_cache_dtype", "str"),
    _engine("kv_cache_memory_bytes", "int", least=1),
    _engine("block_size", "int", least=1),
    _engine("load_format", "str"),
    _engine("dtype", "str"),
    _engine("quantization", "str"),
    _engine("moe_backend", "str"),
    _engine("linear_backend", "str"),
    _engine("attention_backend", "str"),
    _engine("tokenizer_mode", "str"),
    _engine("reasoning_parser", "str"),
    _engine("tool_call_parser", "str"),
    _engine("enable_auto_tool_choice", "bool"),
    _engine("enable_prefix_caching", "bool"),
    _engine("enable_chunked_prefill", "bool"),
    _engine("enable_flashinfer_autotune", "bool"),
    _engine("enable_request_id_headers", "bool"),
    _engine("enforce_eager", "bool"),
    _engine("async_scheduling", "bool"),
    _engine("scheduler_reserve_full_isl", "bool"),
    _engine("disable_custom_all_reduce", "bool"),
    _engine("max_cudagraph_capture_size", "int", least=1),
    _engine("compilation_config", "json"),
    _engine("default_chat_template_kwargs", "json"),
    _engine("override_generation_config", "json"),
    _engine("additional_config", "json"),
    _engine("worker_cls", "str"),
    _engine("prefix_cache_retention_interval", "int", least=0),
    _engine("fail_on_environ_validation", "bool"),
    _engine("seed", "int", least=0),
    _runtime("experts", "str", choices=("native", "w2-resident", "w2-cache")),
    _runtime("pool_gib", "float", least=0, words=("auto",)),
    _runtime("pool_reserve_gib", "float", least=0),
    _runtime("pool_allocation", "str", choices=("first", "last")),
    _runtime("pool_policy", "str", choices=("frequency", "lru", "need", "fixed")),
    _runtime("pool_per_step", "int", least=0),
    _runtime("pool_hysteresis", "float", least=0),
    _runtime("pool_half_life_steps", "float", least=1e-3),
    _runtime("prefill_policy", "str", choices=("opportunistic", "ensure")),
    _runtime("prefill_tokens", "int", least=1),
    _runtime("heat", "bool"),
    _runtime("heat_dir", "str"),
    _runtime("heat_every_s", "float", least=0.1),
    _runtime("base_cache_gib", "float", least=0),
    _runtime("arena_gib", "float", least=0),
    _runtime("mapped_layers", "layers"),
    _runtime("replay", "str", choices=("strict", "approximate")),
    _runtime("replay_tolerance", "int", least=1),
    _runtime("replay_rounds", "int", least=1),
    _runtime("fetch_threads", "int", least=1, most=64),
    _runtime("gate_threshold", "float", least=1e-6),
    _runtime("gate_signal", "str", choices=("max_prob", "margin")),
    _runtime("gate_budget", "int", least=0),
    _runtime("gate_percent", "float", least=0.01, most=100),
    _runtime("pack_dir", "str"),
    _launcher("peer_to_peer", "str", choices=("on", "off")),
    _launcher("draft_tokens", "int", least=0, most=5),
    _launcher("checkpoint", "str"),
    _launcher("port", "int", least=1, most=65535),
    _launcher("bind", "str"),
    _launcher("tls_dir", "str"),
)

KNOBS: dict[str, KnobSpec] = {spec.name: spec for spec in _ALL}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, if any is like it (case, `-` and `_` do not matter)."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "_")

    by_plain = {plain(k): k for k in known}
    found = difflib.get_close_matches(plain(name), by_plain, n=1, cutoff=0.5)
    return by_plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    like = nearest(name, names)
    return f"did you mean '{like}'?" if like else f"known: {', '.join(names)}"
