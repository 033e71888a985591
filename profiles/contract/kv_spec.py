"""The KV cache of a configuration as vLLM's own code lays it out: specifications and capacities."""

from __future__ import annotations

from typing import Any


def measure(config: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Groups of the model's KV cache, bytes per block, and capacities of `wanted["bytes"]`.

    The model is built on the meta device: its layers say what they keep, nothing is allocated.
    """
    from vllm.config import set_current_vllm_config
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    if config.parallel_config.worker_cls.startswith("dsruntime.cpu."):
        from dsruntime.cpu.enable import enable  # what that worker does before it builds the model

        enable(config)
    with set_current_vllm_config(config):
        _pretend_ranks(config.parallel_config.tensor_parallel_size)
        specs, model = _layer_specs(config)
    _resolve_layout(config, specs)
    register_all_kvcache_specs(config)
    plenty = 1 << 50
    groups = utils.get_kv_cache_configs(config, [dict(specs)], [plenty])[0].kv_cache_groups
    answer: dict[str, Any] = {
        "layers": len(specs),
        "layout": config.cache_config.get_resolved_kv_cache_layout().name,
        "bytes_per_block": utils._pool_bytes_per_block(config, groups),
        "groups": [_group(g) for g in groups],
        "in_flight_tokens": config.max_in_flight_tokens,
        "one_request_bytes": utils._max_memory_usage_bytes_from_groups(config, groups),
        "capacity": [],
    }
    answer["dense_bytes"], answer["expert_bytes"] = _weights(model)
    for available in wanted["bytes"]:
        found = utils.get_kv_cache_config_from_groups(config, groups, available)
        tokens, _ = utils.get_kv_cache_capacity(config, found)
        answer["capacity"].append(
            {"bytes": available, "blocks": found.num_blocks, "tokens": tokens}
        )
    return answer


class _Ranks:
    """A group of ranks in which this process is rank 0 and the others are imagined."""

    def __init__(self, world: int) -> None:
        self.world_size = world
        self.ranks = list(range(world))
        self.rank = self.rank_in_group = self.local_rank = 0
        self.is_first_rank = True
        self.is_last_rank = world == 1
        self.device_group = self.cpu_group = None
        self.unique_name = "imagined"


def _pretend_ranks(tensor_parallel: int) -> None:
    from vllm.distributed import parallel_state as state

    one = _Ranks(1)
    for name in [n for n in vars(state) if n.isupper() and n.startswith("_")]:
        if getattr(state, name) is None:
            setattr(state, name, one)
    state._TP = _Ranks(tensor_parallel)
    state._WORLD = state._TP


def _layer_specs(config: Any) -> tuple[dict[str, Any], Any]:
    import torch
    from torch.overrides import TorchFunctionMode
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    class OnMeta(TorchFunctionMode):
        """Whatever asks for memory of a GPU gets a tensor without memory."""

        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "meta"
            return function(*args, **kwargs)

    for name in ("Stream", "Event"):  # vLLM's CPU runner hides them in the same way
        setattr(torch.cuda, name, _Inert)
    dtype = config.model_config.dtype
    with set_default_torch_dtype(dtype), torch.device("meta"), OnMeta():
        model = initialize_model(vllm_config=config)
        draft = config.speculative_config
        if draft is not None:
            initialize_model(vllm_config=config, model_config=draft.draft_model_config)
    layers = config.compilation_config.static_forward_context
    specs = {}
    for name, layer in layers.items():
        if hasattr(layer, "get_kv_cache_spec"):
            spec = layer.get_kv_cache_spec(config)
            if spec is not None:
                specs[name] = spec
    return specs, model


def _weights(model: Any) -> tuple[int, int]:
    """Bytes of parameters and buffers, each once: all but routed experts, and those."""
    seen: set[int] = set()
    dense = experts = 0
    for source in (model.named_parameters, model.named_buffers):
        for name, tensor in source(remove_duplicate=False):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            size = tensor.numel() * tensor.element_size()
            if "routed_experts" in name:
                experts += size
            else:
                dense += size
    return dense, experts


class _Inert:
    """A stream or an event: model code makes some when it is built, and uses none here."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass


def _resolve_layout(config: Any, specs: dict[str, Any]) -> None:
    """As the engine core does before it profiles memory."""
    from vllm.v1.attention.backends import utils

    layers = config.compilation_config.static_forward_context
    backends = {layers[name].get_attn_backend() for name in specs}
    supported = [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
    utils.resolve_kv_cache_layout(config, [supported], list(specs.values()))


def _group(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)
    first = next(iter(inner.values())) if inner else spec
    return {
        "layers": len(group.layer_names),
        "example": group.layer_names[0],
        "kind": type(first).__name__,
        "block_size": first.block_size,
        "window": getattr(first, "sliding_window", None),
        "extra_retained": getattr(first, "extra_retained_tokens", 0),
        "page_bytes": sum(s.page_size_bytes for s in (inner or {"": spec}).values()),
        "layer_page_bytes": sorted({s.page_size_bytes for s in (inner or {"": spec}).values()}),
    }
