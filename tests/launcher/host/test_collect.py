"""Facts as a whole: recorded and live through the same parsers, JSON and back, nothing crashes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsctl.errors import ConfigError
from dsctl.host.collect import _later, collect, read_facts
from dsctl.host.redact import redact, redact_text
from dsctl.host.root import AbsentError
from dsctl.model.facts import Facts

HOSTS = Path(__file__).parents[2] / "hosts"
NAMES = sorted(p.name for p in HOSTS.iterdir() if p.is_dir())
GIB = 1 << 30


@pytest.mark.parametrize("name", NAMES)
def test_facts_of_every_recorded_host_survive_json(name: str) -> None:
    facts = collect(HOSTS / name)
    assert read_facts(facts.model_dump_json(), "x") == facts


def test_the_live_host_goes_through_the_same_parsers() -> None:
    facts = collect()
    assert facts.source == "live"
    assert facts.cpu is not None
    assert facts.memory is not None
    assert facts.memory.total_bytes > facts.memory.available_bytes > 0
    assert facts.vm is not None
    assert facts.vm.swappiness is not None
    assert facts.disk_of("/") is not None
    assert facts.nvml is not None or "nvml" in facts.absent
    assert facts.elapsed_s < 10


def test_a_tree_with_nothing_in_it_gives_reasons_not_a_crash(tmp_path: Path) -> None:
    facts = collect(tmp_path)
    for section in ("cpu", "memory", "swap", "nvml", "docker", "disks", "pcie"):
        assert getattr(facts, section) is None
        assert "missing" in facts.why_absent(section)


def test_a_tree_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--sysroot .*not a directory"):
        collect(tmp_path / "nowhere")


_FILES = [
    "proc/meminfo",
    "proc/swaps",
    "proc/cpuinfo",
    "proc/pressure/memory",
    "proc/self/limits",
    "proc/net/tcp",
    "proc/driver/nvidia/version",
    "sys/devices/system/node/node0/meminfo",
    "nvml.json",
    "docker.json",
    "disks.json",
]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(_FILES), content=st.binary(max_size=200), cut=st.booleans())
def test_any_damage_to_any_file_is_a_reason_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, cut: bool
) -> None:
    host = tmp_path_factory.mktemp("host")
    for file in _FILES:
        source = HOSTS / "server-two-socket" / file
        (host / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, host / file)
    original = (host / name).read_bytes()
    (host / name).write_bytes(original[: len(original) // 2] if cut else content)
    assert isinstance(collect(host), Facts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", r"f\.json:1: not JSON"),
        ("[]", "'schema_version'"),
        ('{"schema_version": 99}', "99 is not 1"),
        ('{"schema_version": 1, "memory": {"total_bytes": "x"}}', r"'memory\.total_bytes'"),
        ('{"schema_version": 1, "colour": "red"}', "'colour'"),
    ],
)
def test_bad_facts_are_refused_by_file_and_key(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_facts(text, "f.json")


def test_the_path_to_the_root_is_found_by_bus_numbers() -> None:
    pcie = collect(HOSTS / "server-two-socket").pcie
    assert pcie is not None
    (gpu,) = pcie.gpus
    assert [d.bdf for d in pcie.path(gpu.bdf)] == ["0000:4b:00.0", "0000:4a:02.0"]


def test_two_dead_channels_show_in_the_nodes() -> None:
    facts = collect(HOSTS / "server-two-socket")
    assert facts.numa is not None
    assert facts.memory is not None
    sizes = [round(n.total_bytes / GIB) for n in facts.numa.nodes]
    assert sizes == [126, 93]
    assert round(facts.memory.total_bytes / GIB) == 219
    assert facts.cpu is not None
    assert (facts.cpu.sockets, facts.cpu.cores, facts.cpu.threads) == (2, 64, 128)


def test_redacted_facts_name_nobody() -> None:
    facts = collect(HOSTS / "workstation-dual-iommu").model_copy(
        update={"p2p_verdicts": None, "redacted": False}
    )
    system = facts.system
    assert system is not None
    named = facts.model_copy(
        update={
            "system": system.model_copy(
                update={"cmdline": "root=UUID=2f1c0b9e-11d1-4a6f-8e11-1c5a7d9e0f42 hf_token=hf_abc"}
            )
        }
    )
    text = redact(named).model_dump_json()
    for private in ("2f1c0b9e", "hf_abc", named.gpus[0].uuid or ""):
        assert private not in text
    again = redact(named)
    assert again.gpus[0].uuid != again.gpus[1].uuid
    assert again.system is not None
    assert again.system.boot_id == system.boot_id


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/alice/models", "/home/user/models"),
        ("/mnt/c/Users/Bob/x", "/mnt/c/Users/user/x"),
        ("ip=10.0.0.2::10.0.0.1:255.0.0.0:mybox quiet", "ip=<host> quiet"),
        ("API_KEY=sk-123 x", "API_KEY=<secret> x"),
        ("52:54:00:12:34:56", "<mac>"),
        ("/dev/nvme0n1p2", "/dev/nvme0n1p2"),
    ],
)
def test_texts_are_redacted_in_shape(text: str, clean: str) -> None:
    assert redact_text(text) == clean


def test_private_registries_are_redacted_and_public_ones_kept() -> None:
    facts = collect(HOSTS / "server-two-socket")
    docker = facts.docker
    assert docker is not None
    images = ("registry.corp.example:5000/llm:1", "ghcr.io/org/vllm:2", "voipmonitor/vllm:x")
    clean = redact(
        facts.model_copy(update={"docker": docker.model_copy(update={"images": images})})
    ).docker
    assert clean is not None
    assert clean.images == ("<registry>/llm:1", "ghcr.io/org/vllm:2", "voipmonitor/vllm:x")


def test_a_source_that_hangs_is_given_up_at_its_deadline() -> None:
    result = _later(lambda: time.sleep(30), "the driver", 0.2)
    began = time.monotonic()
    with pytest.raises(AbsentError, match="the driver gave no answer within"):
        result()
    assert time.monotonic() - began < 2


def test_recorded_answers_that_are_not_json_are_named(tmp_path: Path) -> None:
    (tmp_path / "nvml.json").write_text('{"devices": [')
    (tmp_path / "docker.json").write_text(json.dumps([1]))
    facts = collect(tmp_path)
    assert "nvml.json:1: not JSON" in facts.why_absent("nvml")
    assert "not an object" in facts.why_absent("docker")
