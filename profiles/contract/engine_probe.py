"""Asks a vLLM what it makes of a command line and an environment; runs in the engine's Python.

Reads one JSON request on stdin: `{"argv": ["serve", "@checkpoint", ...], "env": {...},
"platform": "cpu"|"cuda", "config": FILE, "kv": null|{"bytes": [...]}}`; writes one JSON answer to
the file that `DSCTL_ANSWER` names. `@checkpoint` becomes a stand-in with that config.json. Nothing
of the engine is started: its own argument parser and configuration code run, and with `kv` its
model is built without memory to ask its layers for their KV-cache specifications.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    os.environ.update(request["env"])
    answer: dict[str, Any] = {"errors": [], "unknown_env": []}
    try:
        _answer(request, answer)
    except _ParserRefusedError as error:
        answer["errors"].append({"stage": "parser", "text": str(error)})
    except Exception as error:
        stage = answer.get("stage", "import")
        answer["errors"].append({"stage": stage, "text": f"{type(error).__name__}: {error}"})
        answer["traceback"] = traceback.format_exc()
    Path(os.environ["DSCTL_ANSWER"]).write_text(json.dumps(answer))


class _ParserRefusedError(Exception):
    pass


def _answer(request: dict[str, Any], answer: dict[str, Any]) -> None:
    if request["platform"] == "cuda":
        import fake_cuda

        fake_cuda.install()
    import vllm.envs as envs

    known = set(envs.environment_variables)
    answer["unknown_env"] = sorted(
        name for name in request["env"] if name.startswith("VLLM_") and name not in known
    )
    answer["version"] = _version()
    answer["stage"] = "parser"
    import stand_in_checkpoint

    stand_in = Path.cwd() / "checkpoint"
    stand_in.mkdir(exist_ok=True)
    stand_in_checkpoint.make(Path(request["config"]), stand_in)
    argv = [str(stand_in) if word == "@checkpoint" else word for word in request["argv"][1:]]
    args = _parse(argv)
    answer["stage"] = "config"
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine_args = AsyncEngineArgs.from_cli_args(args)
    config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    answer["resolved"] = _resolved(config)
    if request.get("kv"):
        answer["stage"] = "model"
        import kv_spec

        answer["kv"] = kv_spec.measure(config, request["kv"])


def _version() -> str:
    from importlib.metadata import version

    return version("vllm")


def _parse(argv: list[str]) -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:  # 0.33 moved it
        from vllm.entrypoints.common import cli_args
    except ImportError:
        from vllm.entrypoints.launchers import cli_args
    parser = cli_args.make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    said: list[str] = []

    def refuse(message: str) -> None:
        said.append(message)
        raise _ParserRefusedError(message)

    parser.error = refuse
    with contextlib.redirect_stderr(sys.stderr):
        args = parser.parse_args(argv)
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    cli_args.validate_parsed_serve_args(args)
    return args


def _resolved(config: Any) -> dict[str, Any]:
    """What the configuration came to, where it could differ from what was asked."""
    speculative = config.speculative_config
    return {
        "architecture": config.model_config.architecture,
        "quantization": config.model_config.quantization,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "block_size": config.cache_config.block_size,
        "kv_cache_dtype": config.cache_config.cache_dtype,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "moe_backend": getattr(config.kernel_config, "moe_backend", None),
        "linear_backend": getattr(config.kernel_config, "linear_backend", None),
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "worker_cls": config.parallel_config.worker_cls,
        "draft": None
        if speculative is None
        else {
            "method": speculative.method,
            "tokens": speculative.num_speculative_tokens,
            "architecture": speculative.draft_model_config.architecture,
        },
    }


if __name__ == "__main__":
    main()
