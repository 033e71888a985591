"""The profile's own settings: what belongs to another card, another fork, or does not exist."""

from __future__ import annotations

from dsctl.model.profile import Status as ProfileStatus
from dsctl.planning.startable import lack_of
from dsctl.preflight.outcome import Outcome, fail, good, warn, worst
from dsctl.preflight.registry import CheckContext, check

#: Switches that work on data-centre Blackwell (SM100) only, by knob and value.
_SM100_ONLY = {
    ("moe_backend", "deep_gemm_mega_moe"): "`--set moe_backend=auto`",
    ("moe_backend", "deep_gemm"): "`--set moe_backend=auto`",
}
#: What only forks of the engine know; stock vLLM warns, ignores them, and is slower or dies.
_FORK_BACKENDS = frozenset({"B12X_MLA_SPARSE"})
_FORK_VARIABLES = ("VLLM_USE_B12X_", "VLLM_PCIE_ALLREDUCE_", "VLLM_ENABLE_PCIE_ALLREDUCE")


@check("profile.status")
def status(context: CheckContext) -> Outcome:
    """How far dsctl stands behind the profile."""
    profile = context.profile
    match profile.status:
        case ProfileStatus.UNSUPPORTED:
            return fail(
                f"{profile.id} is not supported: {profile.status_reason}",
                "choose another: `dsctl profiles list`",
            )
        case ProfileStatus.EXPERIMENTAL:
            lack = lack_of(profile)
            return warn(
                f"{profile.id} is experimental: {profile.status_reason}",
                lack.remedy
                if lack is not None
                else "compare its answers before you rely on it: `dsctl quality run`",
                f"`dsctl up` refuses it: {lack.why}" if lack is not None else "",
            )
        case _:
            return good(f"{profile.id} is {profile.status}, verified: {profile.verified}")


@check("profile.flags")
def flags(context: CheckContext) -> Outcome:
    """Settings that are known to fail, or to do nothing, on this card with this engine."""
    return worst(_findings(context), good("no setting that is known to fail"))


def _findings(context: CheckContext) -> list[Outcome]:
    external, found = context.profile.engine.external, []
    for (knob, value), remedy in _SM100_ONLY.items():
        if context.value(knob) == value:
            found.append(fail(f"{knob}={value} works on SM100 cards only", remedy))
    extra = context.value("additional_config") or {}
    if isinstance(extra, dict) and extra.get("use_fp4_indexer_cache"):
        found.append(
            fail("use_fp4_indexer_cache works on SM100 cards only", "take it out of the profile")
        )
    backend = context.value("attention_backend")
    if backend in _FORK_BACKENDS and not external:
        found.append(
            fail(
                f"attention_backend={backend} exists in forks only",
                "leave attention_backend out: the engine chooses its SM120 backend",
            )
        )
    if not external:
        found += _fork_variables(context)
    cuda = context.profile.hardware.device == "cuda"
    cache = context.value("kv_cache_dtype", "auto")
    if cuda and cache not in ("fp8", "fp8_e4m3", "fp8_ds_mla"):
        found.append(
            fail(f"kv_cache_dtype={cache}: this model's cache is fp8", "`--set kv_cache_dtype=fp8`")
        )
    if context.env("NCCL_GRAPH_FILE") == "":
        found.append(fail("NCCL_GRAPH_FILE is set and empty", "take it out of the profile"))
    found += _graphs(context)
    return found


def _fork_variables(context: CheckContext) -> list[Outcome]:
    names = [n for n in context.profile.env if n.startswith(_FORK_VARIABLES)]
    if not names:
        return []
    return [
        warn(
            f"{names[0]} means nothing to this engine; it belongs to a fork",
            f"take {', '.join(names)} out of the profile",
        )
    ]


def _graphs(context: CheckContext) -> list[Outcome]:
    """Captured graphs must cover a step of every sequence with all its draft tokens."""
    cap = context.value("max_cudagraph_capture_size")
    rows = int(context.value("max_num_seqs", 1)) * (1 + int(context.value("draft_tokens", 0)))
    if cap is None or int(cap) >= rows:
        return []
    return [
        warn(
            f"graphs are captured up to {cap} rows, a full step has {rows}",
            f"`--set max_cudagraph_capture_size={rows}`",
        )
    ]
