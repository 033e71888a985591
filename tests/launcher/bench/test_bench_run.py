"""Benchmarks against the scripted endpoint: the numbers are those of the script, within 1 %."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsctl.bench.engine_metrics import draft_stats, read_counters
from dsctl.bench.figures import summarise
from dsctl.bench.run import grid, run_bench
from dsctl.bench.schema import BenchResult, Cell, Spec
from dsctl.bench.store import load_bench
from dsctl.bench.table import csv_text, markdown
from dsctl.errors import ConfigError, EngineError
from dsctl.measure.subject import find_subject
from tests.support.endpoint import Endpoint, Reply, words
from tests.support.endpoint.behaviours import MODELS, by_model
from tests.support.endpoint.command import main
from tests.support.moments import in_a_quiet_moment

TTFT, GAP, TOKENS = 0.4, 0.01, 101


def steady(body: dict[str, Any]) -> Reply:
    prompt = sum(len(words(m["content"])) for m in body["messages"])
    count = min(TOKENS, body["max_tokens"])
    tokens = tuple(f" {i}" for i in range(count))
    return Reply(tokens, ttft_s=TTFT, gap_s=GAP, prompt_tokens=prompt, finish="length")


def tokenizing(server: Endpoint) -> Endpoint:
    server.posts["/tokenize"] = lambda body: {"count": len(words(body["prompt"]))}
    return server


def bench(server: Endpoint, spec: Spec, out: Path | None = None, model: str | None = None) -> Any:
    return run_bench(spec, find_subject(server.url, model), out, now=lambda: 1.0)


@in_a_quiet_moment()
def test_decode_prefill_and_first_token_are_those_of_the_script_within_one_percent() -> None:
    spec = Spec(prefill=(800,), decode=(TOKENS,), runs=2)
    with Endpoint(steady) as server:
        result = bench(tokenizing(server), spec)
        served = server.served[-2:]
    (cell,) = result.cells
    figures = summarise(cell)
    # The script's own send times say what was sent when, also on a busy machine.
    sent = [s.sent_s for s in served if s.path.endswith("completions")]
    sent = [s for s in sent if len(s) == TOKENS]
    rates = [(TOKENS - 1) / (s[-1] - s[0]) for s in sent]
    assert figures.decode_tok_s is not None
    assert figures.decode_tok_s.mean == pytest.approx(sum(rates) / len(rates), rel=0.01)
    assert figures.decode_tok_s.mean == pytest.approx(1 / GAP, rel=0.05)
    assert figures.ttft_s is not None
    assert figures.ttft_s.mean == pytest.approx(TTFT, rel=0.02)
    assert figures.prefill_tok_s is not None
    prompt = cell.rounds[0].samples[0].prompt_tokens
    assert prompt == pytest.approx(800, rel=0.02)
    assert figures.prefill_tok_s.mean == pytest.approx(800 / TTFT, rel=0.05)
    assert figures.gap_p50_s == pytest.approx(GAP, rel=0.05)
    assert figures.total_s is not None
    assert figures.total_s.mean == pytest.approx(TTFT + GAP * (TOKENS - 1), rel=0.02)


@in_a_quiet_moment()
def test_streams_at_once_add_up() -> None:
    with Endpoint(steady) as server:
        (cell,) = bench(
            server, Spec(prefill=(50,), decode=(TOKENS,), concurrency=(8,), runs=1)
        ).cells
    figures = summarise(cell)
    assert figures.decode_tok_s is not None
    assert figures.decode_tok_s.mean == pytest.approx(8 / GAP, rel=0.05)
    assert figures.peak_tok_s is not None
    assert figures.peak_tok_s.mean == pytest.approx(8 / GAP, rel=0.08)
    assert figures.request_tok_s is not None
    assert figures.request_tok_s.mean == pytest.approx(1 / GAP, rel=0.05)


def test_every_prompt_is_new_unless_it_is_meant_to_be_cached() -> None:
    spec = Spec(prefill=(60,), decode=(2,), depths=(80,), caches=("cold", "warm"), runs=2)
    with Endpoint(steady) as server:
        bench(tokenizing(server), spec)
        asked = [s.body["messages"] for s in server.served if "messages" in s.body]
    contexts = [m[0]["content"] for m in asked if m[0]["role"] == "system"]
    cold, warm = contexts[:2], contexts[2:]
    assert len({text[:12] for text in cold}) == 2
    assert warm == [warm[0], warm[0], warm[2], warm[2]]
    assert len(set(contexts)) == 4


@in_a_quiet_moment()
def test_lossy_lying_and_dying_endpoints_are_not_measured_as_good() -> None:
    spec = Spec(prefill=(20,), decode=(20,), runs=1)
    with Endpoint(by_model, models=MODELS) as server:
        lying = summarise(bench(server, spec, model="lying").cells[0])
        assert lying.doubts == ("usage says 10 tokens, 20 token ids were sent",)
        assert lying.decode_tok_s is not None
        assert lying.decode_tok_s.mean == pytest.approx(500, rel=0.3)  # by what arrived
        for model in ("dying", "lossy"):
            with pytest.raises(EngineError, match="no request came back: broken"):
                bench(server, spec, model=model)


@in_a_quiet_moment()
def test_a_slow_endpoint_is_slow_by_the_right_amount() -> None:
    with Endpoint(by_model, models=MODELS) as server:
        spec = Spec(prefill=(20,), decode=(6,), runs=1)
        figures = summarise(bench(server, spec, model="slow").cells[0])
    assert figures.decode_tok_s is not None
    assert figures.decode_tok_s.mean == pytest.approx(10, rel=0.02)


def test_an_interrupted_benchmark_resumes_and_never_mixes(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    spec = Spec(prefill=(10,), decode=(3, 4), runs=1)
    with Endpoint(lambda body: Reply(tuple("abcdefgh")[: body["max_tokens"]])) as server:

        def dies(body: dict[str, Any]) -> Reply:
            return Reply(("a",), fault="cut") if body["max_tokens"] == 4 else Reply(("a", "b", "c"))

        server.responder = dies
        with pytest.raises(EngineError):
            bench(server, spec, out)
        assert [c.decode for c in load_bench(out).cells] == [3]
        server.responder = lambda body: Reply(tuple("abcd"))
        before = len(server.served)
        result = bench(server, spec, out)
        measured = [s for s in server.served[before:] if s.body.get("min_tokens") == 3]
        assert measured == []
        assert [c.decode for c in result.cells] == [3, 4]
        with pytest.raises(ConfigError, match="something else"):
            bench(server, Spec(prefill=(11,), decode=(3,), runs=1), out)


def test_the_grid_has_no_warm_cell_without_context() -> None:
    spec = Spec(depths=(0, 100), caches=("cold", "warm"), concurrency=(1, 2))
    assert [c.key[2:] for c in grid(spec)] == [
        (0, 1, "cold"),
        (0, 2, "cold"),
        (100, 1, "cold"),
        (100, 1, "warm"),
        (100, 2, "cold"),
        (100, 2, "warm"),
    ]


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} %d
"""


def test_draft_statistics_are_differences_of_the_engines_counters() -> None:
    found = draft_stats(
        read_counters(METRICS % (100, 200, 90, 60, 30)),
        read_counters(METRICS % (200, 400, 230, 150, 80)),
    )
    assert found is not None
    assert (found.drafts, found.draft_tokens, found.accepted) == (100, 200, 140)
    assert found.acceptance_length == pytest.approx(2.4)
    assert found.acceptance_rate == pytest.approx(0.7)
    assert found.per_position == (0.9, 0.5)
    assert draft_stats({}, {}) is None


def test_the_table_has_the_columns_that_people_paste() -> None:
    with Endpoint(steady) as server:
        spec = Spec(prefill=(30,), decode=(12,), depths=(0, 40), concurrency=(1, 2), runs=2)
        result = bench(tokenizing(server), spec)
    text = markdown(result)
    head = "| model | test | t/s | peak t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |"
    assert text.splitlines()[0] == head
    tests = [line.split("|")[2].strip() for line in text.splitlines()[2:10]]
    assert tests == [
        "pp30",
        "tg12",
        "pp30 (c2)",
        "tg12 (c2)",
        "pp30 @ d40",
        "tg12 @ d40",
        "pp30 @ d40 (c2)",
        "tg12 @ d40 (c2)",
    ]
    assert all(line.count("|") == 8 for line in text.splitlines()[:10])
    lines = csv_text(result).splitlines()
    assert len(lines) == 1 + 2 * (1 + 2 + 1 + 2)
    assert BenchResult.model_validate_json(result.model_dump_json()) == result


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Endpoint(lambda body: Reply(tuple("abcd"), gap_s=0.002)) as server:
        argv = ["bench", "run", "--pp", "20", "--tg", "4", "-n", "2", "--endpoint", server.url]
        assert main([*argv, "-o", str(tmp_path / "x.json"), "--format", "json"]) == 0
        assert json.loads(capfd.readouterr().out)["kind"] == "bench"
        assert main([*argv, "--pp", "0"]) == 2
        assert "--pp 0: at least 1" in capfd.readouterr().err
        assert main([*argv, "--model", "no"]) == 2
        assert "--model no" in capfd.readouterr().err
    assert main(["bench", "plot", str(tmp_path / "x.json"), "-o", str(tmp_path / "c")]) == 0
    names = sorted(p.name for p in (tmp_path / "c").iterdir())
    assert "decode-over-context.svg" in names
    assert "latency.png" in names
    assert (tmp_path / "c" / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "plot", str(tmp_path / "none.json")]) == 2


def test_a_cell_that_does_not_fit_the_window_is_skipped_and_said_so() -> None:
    with Endpoint(steady) as server:
        subject = find_subject(server.url, None)
        small = subject.conditions.model_copy(update={"max_model_len": 100})
        from dataclasses import replace

        result = run_bench(
            Spec(prefill=(90,), decode=(20,), runs=1), replace(subject, conditions=small)
        )
    assert result.cells[0].skipped == "needs 174 tokens, the window is 100"
    assert "not measured, needs 174 tokens" in markdown(result)
    assert isinstance(result.cells[0], Cell)
