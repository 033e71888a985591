"""What a parser says about flags, read from the last lines it printed."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stderr

import pytest

from dsctl.vet.parser import UNKNOWN, flag_proof, flags_in, serve_argv, serve_env
from dsctl.vet.values import Parsed
from tests.launcher.vet.values import community, parsed

ARGV = ("vllm", "serve", "/m", "--port", "8000", "--moe-backend=b12x", "--no-async", UNKNOWN)

SAID = [
    (f"vllm: error: unrecognized arguments: {UNKNOWN}", Parsed.ACCEPTED, ()),
    (f"error: unrecognized arguments: --no-async {UNKNOWN}", Parsed.REFUSED, ("--no-async",)),
    (
        f"error: unrecognized arguments: --moe-backend=b12x x --no-async {UNKNOWN}",
        Parsed.REFUSED,
        ("--moe-backend", "--no-async"),
    ),
    (
        "vllm serve: error: argument --moe-backend: invalid choice: 'b12x' (choose from 'auto')",
        Parsed.REFUSED,
        ("--moe-backend",),
    ),
    ("error: argument -p/--port: invalid int value: 'x'", Parsed.REFUSED, ("--port",)),
    ("Error: No such option: --no-async", Parsed.REFUSED, ("--no-async",)),
    (f"Error: No such option: {UNKNOWN}", Parsed.ACCEPTED, ()),
    ("ImportError: libcuda.so.1: cannot open shared object file", Parsed.UNPROVEN, ()),
    ('exec: "vllm": executable file not found in $PATH', Parsed.UNPROVEN, ()),
]


@pytest.mark.parametrize(("line", "outcome", "refused"), SAID)
def test_an_answer_of_a_parser(line: str, outcome: Parsed, refused: tuple[str, ...]) -> None:
    proof = flag_proof(parsed(ARGV, "usage: vllm serve [model_tag] …", line))
    assert (proof.outcome, proof.refused) == (outcome, refused)
    assert proof.flags == ("--moe-backend", "--no-async", "--port")


def test_silence_proves_nothing() -> None:
    assert flag_proof(parsed(ARGV, exit_code=None)).outcome is Parsed.UNPROVEN
    assert flag_proof(parsed(ARGV, exit_code=0)).outcome is Parsed.UNPROVEN


def test_a_real_parser_that_lacks_one_flag_names_it() -> None:
    profile = community()
    argv = (*serve_argv(profile), UNKNOWN)
    parser = argparse.ArgumentParser(prog="vllm serve")
    parser.add_argument("model")
    for flag in flags_in(argv):
        if flag != "--linear-backend":
            takes_none = flag.startswith("--no-") or argv[argv.index(flag) + 1].startswith("--")
            parser.add_argument(
                flag, **({"action": "store_true"} if takes_none else {"nargs": "+"})
            )  # type: ignore[arg-type]
    said = io.StringIO()
    with redirect_stderr(said), pytest.raises(SystemExit):
        parser.parse_args(list(argv[argv.index("serve") + 1 :]))
    proof = flag_proof(parsed(argv, *said.getvalue().splitlines()))
    assert (proof.outcome, proof.refused) == (Parsed.REFUSED, ("--linear-backend",))


def test_the_profiles_unset_variables_are_taken_away() -> None:
    env = serve_env(community())
    assert env["NCCL_GRAPH_FILE"] is None
    assert env["HF_HUB_OFFLINE"] == "1"
