"""A log that holds several engine starts: the last that failed is the one that is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsctl.diagnose import Matcher, diagnose, diagnose_sources
from dsctl.diagnose.reading import Scan
from dsctl.model.diagnosis import Diagnosis

LOGS = Path(__file__).parents[2] / "logs"
_BY = "(APIServer pid=1) INFO 12-01 02:21:28 [api_utils.py:347]"
VERSIONS = {
    "0.19": "INFO 07-14 11:02:19 [api_server.py:1289] vLLM API server version 0.19.1",
    "0.32": f"{_BY}  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
    "0.32 without logo": f"{_BY} vLLM server version 0.32.0, serving model /models/x",
    "0.32 in colour": f"{_BY} ▄█\x1b[0m ▀▄▀ \x1b[1m█\x1b[0m  version \x1b[1m0.32.0\x1b[0m",
}
VERSION = VERSIONS["0.19"]


def _lines(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_bytes().decode().split("\n")


def _start(name: str) -> list[str]:
    """One start of its own: a log behind the version that the server prints."""
    lines = [line for line in _lines(name) if "API server version" not in line]
    return [VERSION, *lines]


_FAILED = sorted(
    p.relative_to(LOGS).with_suffix("").as_posix() for p in LOGS.glob("*/positive-*.log")
)
_CLEAN = ["clean/clean-1", "clean/clean-3", "clean/canary-start-and-stop"]
KV, PORT, DIED = (
    "memory.kv-too-small/positive-1",
    "container.port-in-use/positive-1",
    "engine.worker-died/positive-1",
)


def _ids(diagnosis: Diagnosis) -> list[tuple[str, int | None]]:
    return [(cause.id, cause.start) for cause in diagnosis.also]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_each_spelling_of_the_version_begins_a_start(version: str) -> None:
    diagnosis = diagnose([*_start(PORT), version, *_start(KV)[1:]])
    assert diagnosis.cause.id == "memory.kv-too-small"
    assert diagnosis.note == "The log holds 2 starts; this is about the last."
    assert _ids(diagnosis) == [("container.port-in-use", 1)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(_FAILED), min_size=2, max_size=4))
def test_of_starts_that_failed_the_last_one_s_cause_is_named(names: list[str]) -> None:
    diagnosis = diagnose([line for name in names for line in _start(name)])
    last = names[-1].split("/")[0]
    assert diagnosis.cause.id == last
    assert {other for other, _ in _ids(diagnosis)} >= {n.split("/")[0] for n in names} - {last}


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(_FAILED), st.lists(st.sampled_from(_CLEAN), min_size=1, max_size=3))
def test_clean_starts_after_a_failed_one_change_the_note_and_not_the_cause(
    name: str, clean: list[str]
) -> None:
    failed = diagnose(_start(name))
    diagnosis = diagnose([*_start(name), *(line for c in clean for line in _start(c))])
    assert diagnosis.cause == failed.cause.model_copy(update={"start": 1})
    how = "was stopped in order" if clean[-1].endswith("stop") else "came up and shows no failure"
    assert diagnosis.note == (f"This is about start 1 of {len(clean) + 1}; the last one {how}.")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(_CLEAN), max_size=3), st.sampled_from(_FAILED))
def test_clean_starts_before_a_failed_one_change_nothing_in_the_cause(
    clean: list[str], name: str
) -> None:
    lines = [line for c in clean for line in _start(c)]
    assert diagnose(lines + _start(name)).cause.id == name.split("/")[0]
    assert diagnose(lines).cause.id == "unknown"


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([*_FAILED, *_CLEAN]), max_size=5), st.integers(1, 5000))
def test_starts_are_told_apart_alike_in_chunks_and_line_by_line(
    names: list[str], size: int
) -> None:
    lines = [line for name in names for line in _start(name)]
    data = "\n".join(lines).encode()
    matcher = Matcher()
    scan = Scan(matcher)
    for at in range(0, len(data), size):
        scan.feed(data[at : at + size])
    scan.end()
    assert matcher.result() == diagnose(lines)


def test_a_last_start_that_failed_for_an_unknown_reason_is_not_put_down_to_an_earlier_one() -> None:
    lines = [*_start(KV), VERSION, "ERROR [x.py:1] FrobnicationError: no such gizmo"]
    diagnosis = diagnose(lines)
    assert diagnosis.cause.id == "unknown"
    assert [e.line for e in diagnosis.evidence] == [len(lines)]
    assert _ids(diagnosis) == [("memory.kv-too-small", 1)]


def test_nor_is_one_that_only_passes_a_failure_on() -> None:
    diagnosis = diagnose([*_start(KV), VERSION, "RuntimeError: Engine core initialization failed."])
    assert diagnosis.cause.id == "unknown"
    assert diagnosis.cause.title == "It failed, and the log does not show why"
    assert _ids(diagnosis) == [("memory.kv-too-small", 1)]


def test_a_log_cut_at_its_front_holds_a_start_without_its_version() -> None:
    front = [line for line in _lines("clean/clean-1") if "Capturing" in line]
    diagnosis = diagnose([*front, *_start("memory.vram-oom-capture/positive-1")[1:], *_start(KV)])
    assert diagnosis.cause.id == "memory.kv-too-small"
    assert _ids(diagnosis) == [("memory.vram-oom-capture", 1)]


def test_what_stands_before_the_first_version_belongs_to_that_start() -> None:
    warning = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old"
    diagnosis = diagnose([warning, *_start("driver.init-failed/positive-3")])
    assert diagnosis.cause.id == "driver.too-old-for-image"
    assert diagnosis.note == ""


@pytest.mark.parametrize("kernel_first", [True, False])
def test_the_kernel_s_word_counts_for_the_last_failed_start_on_either_side_of_the_engine_s_log(
    kernel_first: bool,
) -> None:
    kernel = _lines("memory.host-oom-kill/positive-2")
    engine = [*_start(PORT), *_start(DIED)]
    lines = kernel + engine if kernel_first else engine + kernel
    assert diagnose(lines).cause.id == "memory.host-oom-kill"


def test_a_kernel_line_between_two_starts_belongs_to_the_first() -> None:
    kernel = _lines("gpu.fell-off-bus/positive-3")
    diagnosis = diagnose([*_start(DIED), *kernel, *_start(KV)])
    assert diagnosis.cause.id == "memory.kv-too-small"
    assert ("gpu.fell-off-bus", 1) in _ids(diagnosis)


@pytest.mark.parametrize("name", ["a-kernel", "kernel"])
def test_a_kernel_log_of_its_own_counts_whatever_its_name(name: str) -> None:
    kernel = _lines("memory.host-oom-kill/positive-2")
    engine = [*_start(DIED), *_start("clean/clean-1")]
    diagnosis = diagnose_sources({"engine": engine, name: kernel})
    assert diagnosis.cause.id == "memory.host-oom-kill"
    assert diagnosis.cause.start == 1


def test_several_servers_of_one_start_are_one_start() -> None:
    lines = [VERSION, VERSION, VERSION, *_start(KV)]
    diagnosis = diagnose(lines)
    assert (diagnosis.cause.id, diagnosis.note) == ("memory.kv-too-small", "")


def test_a_setting_of_an_earlier_start_does_not_excuse_the_last() -> None:
    hang = _start("comm.p2p-hang/positive-1")
    disabled = [VERSION, "NCCL INFO NCCL_P2P_DISABLE set by environment to 1", *_start(KV)[1:]]
    assert diagnose(disabled + hang).cause.id == "comm.p2p-hang"


def test_json_marks_what_earlier_starts_showed() -> None:
    answer = diagnose([*_start(PORT), *_start(KV)]).to_json()
    assert answer["also"][0]["start"] == 1
    assert "2 starts" in answer["note"]
