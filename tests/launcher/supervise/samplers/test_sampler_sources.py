"""GPU, kernel log, metrics, engine log and container events, as the real things write them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dsctl.model.endpoint import Endpoint
from dsctl.model.sample import ContainerEvent
from dsctl.supervise.logtail import LogTail
from dsctl.supervise.samplers import gpu as gpu_module
from dsctl.supervise.samplers.containers import ContainerEvents
from dsctl.supervise.samplers.enginelog import EngineLog
from dsctl.supervise.samplers.gpu import GpuReader
from dsctl.supervise.samplers.kernel import KernelReader, parse_record, parse_xid
from dsctl.supervise.samplers.metrics import MetricsReader, parse_metrics
from dsctl.supervise.samplers.reader import Unreadable
from tests.support.endpoint import Endpoint as ScriptedEndpoint
from tests.support.endpoint import Reply
from tests.support.nvml import standin

HOSTS = Path(__file__).parents[4] / "tests" / "hosts"
LONG_S = 60.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a reader of a stand-in driver that answers as a recorded host, plus what is given."""
    readers: list[GpuReader] = []

    def make(deadline_s: float = LONG_S, extra: dict[str, Any] | None = None, **orders: Any) -> Any:
        nvml = standin.read_json(HOSTS / "workstation-dual-healthy")
        for device in nvml["devices"]:
            device |= extra or {}
        answers = standin.write_answers(nvml, tmp_path / "answers", **orders)
        for name, value in standin.environment(library, answers).items():
            monkeypatch.setenv(name, value)
        readers.append(GpuReader(deadline_s=deadline_s))
        return nvml, readers[-1]

    yield make
    for reader in readers:
        reader.close()


def test_every_card_tells_its_load_power_clocks_and_throttling(cards: Any) -> None:
    extra = {
        "utilization_percent": 97,
        "sm_clock_mhz": 2400,
        "memory_clock_mhz": 14001,
        "throttle_reasons": 0x44,
    }
    nvml, reader = cards(extra=extra)
    for _ in range(2):  # the same helper answers again
        found = reader()
        assert [c.index for c in found] == [d["index"] for d in nvml["devices"]]
        assert found[0].memory_used_bytes == nvml["devices"][0]["memory_used"]
        assert found[0].power_limit_w == nvml["devices"][0]["power_limit_w"]
        assert found[0].utilization_percent == 97
        assert (found[0].sm_clock_mhz, found[0].memory_clock_mhz) == (2400, 14001)
        assert found[0].throttled_by == ("power-cap", "thermal-hardware")


def test_what_a_card_does_not_answer_is_none(cards: Any) -> None:
    _, reader = cards()
    found = reader()
    assert found[0].utilization_percent is None
    assert found[0].throttled_by == ()


def test_only_the_cards_that_matter(cards: Any) -> None:
    _, reader = cards()
    reader.only = frozenset({1})
    assert [c.index for c in reader()] == [1]


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetUtilizationRates"])
def test_a_driver_that_hangs_is_left_behind_and_named(cards: Any, function: str) -> None:
    now = [0.0]
    _, reader = cards(deadline_s=5.0, hang=function)
    reader.clock = lambda: now[0]
    real = gpu_module.selectors.DefaultSelector.select

    def select(self: Any, timeout: float | None = None) -> Any:
        """Waits for real until the helper is in the call, then lets the deadline pass."""
        events = real(self, 0.2)
        if not events and function.removesuffix("WithFlags") in reader._last_call:
            now[0] += 10.0
        return events

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_module.selectors.DefaultSelector, "select", select)
        with pytest.raises(Unreadable, match=f"NVML hangs in {function.removesuffix('WithFlags')}"):
            reader()
    assert reader.helper_pid is None
    with pytest.raises(Unreadable, match="NVML hangs"):
        reader()  # no second helper while the first failure is fresh
    assert reader.helper_pid is None


def test_a_lost_card_is_the_drivers_own_word(cards: Any) -> None:
    _, reader = cards(fail_nvmlDeviceGetMemoryInfo=15)
    with pytest.raises(Unreadable, match="NVML: GPU is lost"):
        reader()


def test_a_helper_that_dies_is_started_again_later() -> None:
    now = [0.0]
    echo = "import sys\nfor line in sys.stdin: print('= {\"devices\": []}', flush=True); break"
    reader = GpuReader(
        command=(sys.executable, "-c", echo), clock=lambda: now[0], deadline_s=LONG_S
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_module, "may_have_library", lambda *_: True)
        assert reader() == ()
        with pytest.raises(Unreadable, match="helper ended"):
            reader()
        now[0] += 31.0
        assert reader() == ()
        reader.close()


def test_without_a_driver_no_helper_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "may_have_library", lambda *_: False)
    reader = GpuReader(command=("/nonexistent",))
    for _ in range(2):
        with pytest.raises(Unreadable, match="no NVIDIA driver"):
            reader()


XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


def test_records_of_the_kernel_log() -> None:
    assert parse_record(f"4,1234,99,-;{XID}\n SUBSYSTEM=pci\n".encode()) == XID
    assert parse_record(b" SUBSYSTEM=pci\n") is None
    found = parse_xid(XID, 5.0)
    assert found is not None
    assert (found.code, found.bdf, found.t) == (79, "0000:01:00", 5.0)
    assert parse_xid("NVRM: loading driver", 5.0) is None


def test_only_what_comes_from_now_on_counts(tmp_path: Path) -> None:
    """A pipe gives what /dev/kmsg gives after its end: records, then nothing for now."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    holder = os.open(fifo, os.O_RDWR)
    try:
        reader = KernelReader(clock=lambda: 7.0)
        reader._descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        assert reader() == ()
        os.write(holder, f"4,1,1,-;{XID}\n".encode())
        assert [x.code for x in reader()] == [79]
        os.write(holder, b"4,2,1,-;usb 1-1: new device\n")
        assert [x.code for x in reader()] == [79]
        assert list(reader.lines) == [XID]
    finally:
        os.close(holder)
        reader._close()


def test_a_kernel_log_that_may_not_be_read_is_a_reason(tmp_path: Path) -> None:
    reader = KernelReader(device=tmp_path / "none")
    with pytest.MonkeyPatch.context() as patch:

        class NoPrivilege:
            def klogctl(self, *_: object) -> int:
                return -1

        patch.setattr("ctypes.CDLL", lambda *_, **__: NoPrivilege())
        with pytest.raises(Unreadable, match="kernel log"):
            reader()


METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 40.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 54.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 5400.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 50.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 17.0
python_gc_objects_collected_total{generation="0"} 9.0
"""


def test_the_few_numbers_that_tell_whether_it_advances() -> None:
    found = parse_metrics(METRICS.splitlines())
    assert found is not None
    assert (found.running, found.waiting, found.iterations) == (3.0, 4.0, 54.0)
    assert found.kv_usage == 0.75, "the fullest engine counts"
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (10.0, 50.0, 17.0)
    assert parse_metrics(["process_cpu_seconds_total 1.0"]) is None


@pytest.mark.parametrize("uds", [False, True])
def test_metrics_over_a_port_or_a_socket(uds: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "s") if uds else None
    with ScriptedEndpoint(lambda body: Reply(), uds=path) as server:
        server.pages["/metrics"] = METRICS
        where = Endpoint(uds=path) if path else Endpoint(port=server.port)
        reader = MetricsReader(where, timeout_s=LONG_S)
        assert reader.http_ok is None
        assert reader().running == 3.0
        assert reader().running == 3.0
        assert reader.http_ok is True
        server.pages["/metrics"] = "nothing of vLLM 1.0\n"
        with pytest.raises(Unreadable, match="no numbers of a vLLM"):
            reader()
        assert reader.http_ok is True
    with pytest.raises(Unreadable, match="/metrics"):
        reader()
    assert reader.http_ok is False


def test_news_in_a_log_is_what_is_not_said_over_and_over(tmp_path: Path) -> None:
    now = [10.0]
    path = tmp_path / "log"
    log = EngineLog(LogTail(path), lambda: now[0])
    assert log().news_at is None
    path.write_text("INFO Loading safetensors checkpoint shards:  50% Completed | 2/4\n")
    seen = log()
    assert (seen.news_at, seen.shards_done, seen.shards_total) == (10.0, 2, 4)
    now[0] = 80.0
    with path.open("a") as file:
        file.write("INFO No available shared memory broadcast block found in 60 seconds. This\n")
        file.write("INFO Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 2 reqs\n")
        file.write('INFO: 127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\n')
    seen = log()
    assert (seen.news_at, seen.line_at, seen.waits, seen.lines) == (10.0, 80.0, 1, 4)
    with path.open("a") as file:
        file.write("ERROR RuntimeError: boom\n")
    seen = log()
    assert (seen.news_at, seen.errors, seen.last_line) == (80.0, 1, "ERROR RuntimeError: boom")


def test_container_events_are_kept_and_a_daemon_that_went_away_is_a_reason() -> None:
    given: list[Any] = [
        [ContainerEvent(t=1.0, action="start")],
        Unreadable("the daemon does not answer"),
        [ContainerEvent(t=3.0, action="oom")],
    ]

    def source() -> list[ContainerEvent]:
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    events = ContainerEvents(source)
    assert [e.action for e in events()] == ["start"]
    with pytest.raises(Unreadable):
        events()
    assert [e.action for e in events()] == ["start", "oom"]
