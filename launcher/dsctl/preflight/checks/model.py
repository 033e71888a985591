"""The checkpoint: whole, of the right revision, and fit for the draft that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsctl.model.profile import Source
from dsctl.preflight.checkpoint import Inspection, Problem, inspect, read_config
from dsctl.preflight.hashing import expected_hashes, hash_shards, revision_of
from dsctl.preflight.outcome import Outcome, SkipError, fail, gib, good, warn
from dsctl.preflight.registry import CheckContext, check
from dsctl.preflight.sources import checkpoint_directory, checkpoint_here, checkpoint_path

_SHOWN = 3


def _fetch(context: CheckContext, files: tuple[str, ...] = ()) -> str:
    model = context.profile.model
    directory = checkpoint_path(context)
    repository = "deepseek-ai/DeepSeek-V4-Flash-0731"
    revision = f" --revision {model.revision}" if model.revision else ""
    names = "".join(f" {f}" for f in files[:_SHOWN])
    return f"`hf download {repository}{names}{revision} --local-dir {directory}`"


def _inspect(context: CheckContext) -> Inspection:
    try:
        return inspect(checkpoint_here(context))
    except ValueError as error:
        return Inspection({}, problems=(Problem(str(error), ("config.json",)),))


def _get_again(context: CheckContext) -> Callable[[tuple[str, ...]], str]:
    """The remedy for files of a checkpoint, by where the checkpoint comes from."""
    knob = context.profile.knobs.get("checkpoint")
    if context.profile.model.geometry != "canary":
        return lambda files: _fetch(context, files)
    if knob is not None and knob.source is Source.USER:
        return lambda _: "name another directory with `--set checkpoint=DIR`, or leave it away"
    return lambda _: "install dsctl again: the canary ships with it"


@check("model.checkpoint")
def checkpoint(context: CheckContext) -> Outcome:
    """Every shard of the index, with the size its header demands; `--deep` hashes them too."""
    directory = checkpoint_directory(context)
    again = _get_again(context)
    if not (directory / "config.json").is_file():
        remedy = again(())
        if "--set checkpoint" not in remedy:
            remedy += ", or `--set checkpoint=DIR` if you have it"
        return fail(f"{checkpoint_path(context)} holds no checkpoint (no config.json)", remedy)
    found = _inspect(context)
    if found.problems:
        files = tuple(f for p in found.problems for f in p.files)
        return fail(
            f"the checkpoint in {checkpoint_path(context)} is not whole: {found.problems[0].text}",
            again(files),
            "\n".join(p.text for p in found.problems[1 : 1 + _SHOWN]),
        )
    architectures = found.config.get("architectures") or []
    if not any(str(a).startswith("DeepseekV4") for a in architectures):
        return fail(
            f"config.json names {', '.join(map(str, architectures)) or 'no architecture'}, not "
            "DeepseekV4ForCausalLM",
            "name the directory of a DeepSeek-V4 checkpoint: `--set checkpoint=DIR`",
        )
    text = f"{len(set(found.tensors.values()))} shards, {gib(found.size_bytes)}, all whole"
    return _deep(context, directory, text) if context.deep else good(text)


def _deep(context: CheckContext, directory: Path, text: str) -> Outcome:
    if context.paths is None:
        raise SkipError("no cache directory to remember hashes in")
    hashes, expected = hash_shards(directory, context.paths, context.progress), None
    expected = expected_hashes(directory)
    wrong = tuple(sorted(n for n, h in hashes.items() if n in expected and expected[n] != h))
    if wrong:
        return fail(
            f"{wrong[0]} is not what was published (sha256 {hashes[wrong[0]][:12]}…, expected "
            f"{expected[wrong[0]][:12]}…)",
            _fetch(context, wrong),
            f"{len(wrong)} of {len(hashes)} shards differ",
        )
    compared = sum(1 for n in hashes if n in expected)
    if compared < len(hashes):
        return good(
            f"{text}; hashed",
            f"{compared} of {len(hashes)} compared: the download left no sha256 for the others",
        )
    return good(f"{text}, every sha256 as published")


@check("model.revision")
def revision(context: CheckContext) -> Outcome:
    """Whether this is the revision that the profile was made with."""
    wanted = context.profile.model.revision
    if wanted is None:
        return good("the profile is made for no revision in particular")
    have = revision_of(checkpoint_here(context))
    if have is None:
        raise SkipError("the checkpoint does not tell its revision (no marks of a hub download)")
    if have != wanted:
        return warn(
            f"the checkpoint is revision {have[:8]}, the profile was made with {wanted[:8]}",
            _fetch(context),
        )
    return good(f"revision {have[:8]}")


def _speculation(context: CheckContext) -> dict[str, Any] | None:
    """What the profile asks of a draft: from `draft_tokens`, or from a speculative config."""
    raw = context.value("speculative_config")
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except json.JSONDecodeError:
            raise SkipError("speculative_config is not JSON") from None
    if isinstance(raw, dict):
        return raw
    tokens = context.value("draft_tokens", 0)
    return {"method": "dspark", "num_speculative_tokens": tokens} if tokens else None


@check("model.draft-weights")
def draft_weights(context: CheckContext) -> Outcome:
    """Whether the draft that is asked for is in the checkpoint."""
    asked = _speculation(context)
    if asked is None:
        return good("no draft is asked for")
    found = _inspect(context)
    if not found.draft_tensors:
        return fail(
            "a draft is asked for, and the checkpoint holds no mtp.* tensors",
            "`--set draft_tokens=0`, or fetch the whole checkpoint: " + _fetch(context),
        )
    layers = {name.split(".")[1] for name in found.draft_tensors}
    targets = found.config.get("dspark_target_layer_ids")
    if targets and len(layers) != len(targets):
        return fail(
            f"the draft has {len(layers)} of {len(targets)} layers",
            _fetch(context),
        )
    return good(f"{len(found.draft_tensors)} tensors of a draft of {len(layers)} layers")


@check("model.speculative-config")
def speculative_config(context: CheckContext) -> Outcome:
    """The draft's settings against what the checkpoint was trained with."""
    asked = _speculation(context)
    if asked is None:
        return good("no draft is asked for")
    method, tokens = asked.get("method", "dspark"), int(asked.get("num_speculative_tokens") or 0)
    resident = context.value("experts") == "w2-resident"
    if resident and context.ranks == 1 and not context.value("mapped_layers", 0):
        return fail(
            "a draft does not fit beside resident planes on one card",
            "`--set draft_tokens=0`, or `--profile single96-dspark`, which moves some layers out",
            "it takes about 19 GiB while it loads, 10 GiB after",
        )
    try:
        config = read_config(checkpoint_here(context))
    except ValueError as error:
        raise SkipError(str(error)) from None
    block = config.get("dspark_block_size")
    if block is None:
        return fail(
            "a draft is asked for, and config.json has no dspark_block_size",
            "`--set draft_tokens=0`",
        )
    if method != "dspark":
        return fail(
            f"method '{method}' does not go with this checkpoint: its mtp.* tensors are a DSpark "
            "draft",
            "`--set draft_tokens=3` (which means dspark)",
        )
    if tokens > int(block):
        return fail(
            f"{tokens} draft tokens, the draft was trained for blocks of {block}",
            f"`--set draft_tokens={block}`",
            "beyond the block acceptance collapses: 1.3 tokens a step instead of 2.7",
        )
    return good(f"dspark with {tokens} draft tokens, trained for {block}")
