"""What is named where logs are mixed, and what the remedies make of the numbers in them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsctl.diagnose import Matcher, diagnose, diagnose_sources
from dsctl.diagnose.reading import Scan

LOGS = Path(__file__).parents[2] / "logs"


def _lines(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_bytes().decode().split("\n")


def _without_version(lines: list[str]) -> list[str]:
    """Lines of which two such logs are one start."""
    return [line for line in lines if "API server version" not in line]


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (
            "memory.host-oom-kill/positive-2",
            "engine.worker-died/positive-1",
            "memory.host-oom-kill",
        ),
        (
            "memory.host-oom-kill/negative-1",
            "memory.vram-oom-load/positive-1",
            "memory.vram-oom-load",
        ),
        (
            "memory.host-oom-kill/positive-1",
            "container.oom-killed/positive-1",
            "memory.host-oom-kill",
        ),
        (
            "container.oom-killed/positive-2",
            "container.oom-killed/positive-1",
            "container.oom-killed",
        ),
        ("comm.p2p-hang/positive-1", "comm.iommu-fault/positive-1", "comm.iommu-fault"),
        (
            "driver.library-mismatch/positive-1",
            "driver.init-failed/positive-1",
            "driver.library-mismatch",
        ),
        (
            "driver.too-old-for-image/positive-1",
            "container.gpu-runtime-missing/negative-1",
            "driver.too-old-for-image",
        ),
        ("container.shm-too-small/positive-1", "wrappers/wrappers-3", "container.shm-too-small"),
        (
            "comm.system-error/positive-1",
            "container.shm-too-small/positive-1",
            "container.shm-too-small",
        ),
        (
            "container.port-in-use/positive-1",
            "container.permission-denied/positive-1",
            "container.port-in-use",
        ),
        ("pack.corrupt/positive-1", "pack.stale/positive-1", "pack.corrupt"),
        ("gpu.xid/positive-1", "gpu.fell-off-bus/positive-1", "gpu.fell-off-bus"),
        ("engine.dead-behind-healthy-api/positive-1", "gpu.xid/positive-2", "gpu.xid"),
        (
            "memory.vram-busy-at-start/positive-1",
            "memory.vram-oom-load/positive-1",
            "memory.vram-busy-at-start",
        ),
    ],
)
def test_of_two_causes_the_one_that_explains_is_named(first: str, second: str, named: str) -> None:
    one, other = (_without_version(_lines(name)) for name in (first, second))
    for lines in (one + other, other + one):
        diagnosis = diagnose(lines)
        assert diagnosis.cause.id == named
        assert named not in {other.id for other in diagnosis.also}


def test_the_engine_s_estimate_becomes_the_remedy() -> None:
    remedy = diagnose(_lines("memory.kv-too-small/positive-1")).cause.remedy
    assert "max_model_len=71680" in remedy
    assert "0.93 GiB more" in remedy  # 2.05 needed, 1.12 available


def test_a_utilization_that_fits_is_worked_out() -> None:
    remedy = diagnose(_lines("memory.vram-busy-at-start/positive-1")).cause.remedy
    assert "41.99 of 94.97 GiB were free" in remedy
    assert "gpu_memory_utilization=0.43" in remedy


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("driver.too-old-for-image/positive-1", "CUDA 12.8"),
        ("driver.library-mismatch/positive-2", "580.95.05, the loaded module is 580.82.09"),
        ("memory.vram-oom-load/positive-1", "1024.00 MiB were asked for with 298.69 MiB free"),
        ("memory.host-oom-kill/positive-1", "VLLM::Worker_TP, which held 116.0 GiB"),
        ("config.dspark-block-size/positive-2", "draft_tokens=5"),
        ("container.port-in-use/positive-2", ":8000"),
        ("engine.worker-died/positive-1", "code -11"),
    ],
)
def test_numbers_of_the_log_stand_in_the_remedy(name: str, number: str) -> None:
    assert number in diagnose(_lines(name)).cause.remedy


def test_the_broadcast_line_alone_is_no_cause_however_often() -> None:
    waiting = _lines("wrappers/wrappers-3")[-2]
    assert "shared memory broadcast block" in waiting
    assert diagnose([waiting] * 5000).cause.id == "unknown"


def test_an_engine_that_was_told_to_stop_did_not_die() -> None:
    lines = _lines("clean/canary-start-and-stop")
    assert any("EngineDeadError" in line for line in lines)
    assert diagnose(lines).cause.id == "unknown"
    untold = [line for line in lines if "shutdown" not in line.lower()]
    assert diagnose(untold).cause.id == "engine.dead-behind-healthy-api"


def test_an_unknown_error_is_shown_and_not_guessed() -> None:
    diagnosis = diagnose(
        [*_lines("wrappers/wrappers-1"), "ERROR [x.py:1] FrobnicationError: no such gizmo"]
    )
    assert diagnosis.cause.id == "unknown"
    assert [e.text for e in diagnosis.evidence] == [
        "ERROR [x.py:1] FrobnicationError: no such gizmo"
    ]


def test_a_warning_that_speaks_of_an_error_reports_none() -> None:
    line = (
        "(APIServer pid=1) WARNING 12-01 02:15:11 [x.py:2] may give `OSError: [Errno 24] Too many`"
    )
    assert diagnose([line]).evidence == ()


def test_what_a_user_wrote_is_no_evidence() -> None:
    line = "INFO Received request chatcmpl-7: prompt: 'NVRM: Xid (PCI:01): 79, x'"
    assert diagnose([line]).cause.id == "unknown"


def test_a_structured_line_names_any_cause_and_fills_its_numbers() -> None:
    line = '2026-12-01 01:25:00 ERROR dsctl-cause: engine.stalled running=3 waiting=1 note="a b"'
    cause = diagnose([line]).cause
    assert cause.id == "engine.stalled"
    assert "3 requests were running, 1 waiting" in cause.remedy


@pytest.mark.parametrize(
    "line",
    ["dsctl-cause: engine.nonsense x=1", "why is there dsctl-cause: engine.stalled in my log"],
)
def test_a_structured_line_must_be_one(line: str) -> None:
    assert diagnose([line]).cause.id == "unknown"


def test_secrets_are_not_shown() -> None:
    line = (
        "vllm serve: error: unrecognized arguments: --foo --api-key sk-abcdef0123456789 "
        "Authorization: Bearer abcdefghijkl HF_TOKEN=hf_abcdefghijklmnop http://me:pw@host/"
    )
    diagnosis = diagnose([line])
    shown = str(diagnosis.to_json())
    assert diagnosis.cause.id == "config.invalid-argument"
    for secret in ("sk-abcdef0123456789", "abcdefghijkl", "hf_abc", "me:pw"):
        assert secret not in shown


def test_sources_are_named_and_their_order_does_not_matter() -> None:
    engine, kernel = (
        _lines("engine.worker-died/positive-1"),
        _lines("memory.host-oom-kill/positive-2"),
    )
    state = {"State": {"OOMKilled": True, "ExitCode": 137}}
    one = diagnose_sources({"engine": engine, "kernel": kernel, "container": state})
    other = diagnose_sources({"container": [state], "kernel": kernel, "engine": "\n".join(engine)})
    assert one == other
    assert one.cause.id == "memory.host-oom-kill"
    assert {e.source for e in one.evidence} == {"kernel"}
    assert {c.id for c in one.also} == {"engine.worker-died", "container.oom-killed"}


@pytest.mark.parametrize("lines_between", [1, 3000])
def test_a_literal_that_was_muted_is_found_when_it_matters(lines_between: int) -> None:
    hang = _lines("comm.p2p-hang/positive-1")
    waiting = [line for line in hang if "broadcast block" in line]
    matcher = Matcher()
    for line in waiting[:1] * lines_between + hang:
        matcher.feed(line)
    assert matcher.result().cause.id == "comm.p2p-hang"


_NAMES = sorted(
    p.relative_to(LOGS).with_suffix("").as_posix() for p in LOGS.glob("*/positive-*.log")
)
_CLEAN = [
    line
    for line in _lines("clean/clean-1") + _lines("clean/clean-3")
    # Lines which say that it went on after all are no filler for a hang.
    if not any(
        text in line
        for text in (
            "Starting to load",
            "Loading ",
            "loading took",
            "Capturing",
            "Graph capt",
            "startup complete",
            "throughput",
            "Available KV",
            "KV cache size",
        )
    )
]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(_NAMES), st.integers(0, 2**32), st.integers(1, 40))
def test_clean_lines_anywhere_do_not_change_the_cause(name: str, seed: int, count: int) -> None:
    rng = random.Random(seed)
    lines = _lines(name)
    named = diagnose(lines).cause.id
    for _ in range(count):
        lines.insert(rng.randint(0, len(lines)), rng.choice(_CLEAN))
    assert diagnose(lines).cause.id == named


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(_NAMES), min_size=2, max_size=4, unique=True), st.randoms())
def test_the_named_cause_does_not_depend_on_the_order_of_logs(
    names: list[str], rng: random.Random
) -> None:
    sources = {name: _lines(name) for name in names}
    shuffled = list(sources.items())
    rng.shuffle(shuffled)
    assert diagnose_sources(dict(shuffled)) == diagnose_sources(sources)


_CONTEXT_LINES = [
    "INFO:     Application startup complete.",
    "INFO Received request chatcmpl-7: prompt: 'INFO: Application startup complete.'",
    "(Worker_TP0 pid=301) INFO 12-01 01:20:44 [x.py:1] Starting to load model /models/x...",
    "(Worker_TP0 pid=301) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  33%",
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in load_model',
    '  File "x.py", line 1, in execute_model',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
    "capacity of 94.97 GiB of which 0.29 GiB is free.",
    "EngineDeadError: EngineCore encountered an issue",
    "(APIServer pid=1) INFO 12-01 02:22:41 [x.py:1] [shutdown] API server: shutdown triggered",
    "a line like any other",
]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(_CONTEXT_LINES), max_size=30))
def test_what_the_engine_was_doing_is_followed_alike_in_chunks_and_line_by_line(
    lines: list[str],
) -> None:
    matcher = Matcher()
    scan = Scan(matcher)
    scan.feed("".join(f"{line}\n" for line in lines).encode())
    scan.end()
    assert matcher.result() == diagnose(lines)
