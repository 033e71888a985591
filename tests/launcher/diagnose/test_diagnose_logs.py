"""Every cause is recognised in differently worded logs, and not in one that looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.diagnose import diagnose
from dsctl.diagnose.catalog import shipped_catalog
from dsctl.diagnose.reading import diagnose_file

LOGS = Path(__file__).parents[2] / "logs"

#: The promise: ids that other programs and people rely on. `unknown` is the absence of one.
CONTRACT = [
    "driver.too-old-for-image",
    "driver.library-mismatch",
    "driver.compat-library-shadowing",
    "driver.ptx-unsupported",
    "driver.no-kernel-image",
    "driver.init-failed",
    "gpu.xid",
    "gpu.fell-off-bus",
    "gpu.gsp-timeout",
    "gpu.nvml-lost-in-container",
    "gpu.thermal",
    "container.gpu-runtime-missing",
    "container.cdi-unresolvable",
    "container.oom-killed",
    "container.shm-too-small",
    "container.memlock-limit",
    "container.read-only-path",
    "container.uid-unknown",
    "container.permission-denied",
    "container.port-in-use",
    "memory.vram-oom-load",
    "memory.vram-oom-capture",
    "memory.vram-oom-runtime",
    "memory.vram-busy-at-start",
    "memory.kv-too-small",
    "memory.host-oom-kill",
    "memory.swap-thrash",
    "memory.mmap-refused",
    "memory.pin-failed",
    "comm.p2p-hang",
    "comm.allreduce-spin",
    "comm.system-error",
    "comm.no-interface",
    "comm.iommu-fault",
    "config.invalid-argument",
    "config.unsupported-on-sm120",
    "config.mtp-not-in-checkpoint",
    "config.dspark-block-size",
    "config.model-path-offline",
    "config.checkpoint-incomplete",
    "kernel.missing-sm120",
    "kernel.package-skew",
    "kernel.deepgemm-layout",
    "engine.dead-behind-healthy-api",
    "engine.stalled",
    "engine.grammar-fsm",
    "engine.worker-died",
    "engine.slow-load",
    "engine.jit-warmup",
    "output.garbage",
    "output.think-tag-leak",
    "output.tool-markup-leak",
    "pack.stale",
    "pack.corrupt",
    "pack.no-space",
    "host.rebooted",
]

_ALL = sorted(LOGS.glob("*/*.log"))
POSITIVE = [path for path in _ALL if path.name.startswith("positive")]
OTHERS = [path for path in _ALL if not path.name.startswith("positive")]


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_the_causes_are_those_of_the_contract() -> None:
    assert set(shipped_catalog().causes) == set(CONTRACT)


@pytest.mark.parametrize("cause", CONTRACT)
def test_each_cause_has_two_positive_logs_and_a_look_alike(cause: str) -> None:
    names = {path.name for path in (LOGS / cause).glob("*.log")}
    assert {"positive-1.log", "positive-2.log", "negative-1.log"} <= names
    texts = {(LOGS / cause / name).read_bytes() for name in names}
    assert len(texts) == len(names)


@pytest.mark.parametrize("path", POSITIVE, ids=_name)
def test_the_cause_is_named_with_evidence_and_a_filled_remedy(path: Path) -> None:
    diagnosis = diagnose_file(str(path))
    assert diagnosis.cause.id == path.parent.name
    assert diagnosis.cause.remedy
    assert "{" not in diagnosis.cause.remedy.replace('{"', "").replace("{memlock", "")
    assert diagnosis.evidence
    lines = path.read_bytes().decode().split("\n")
    for evidence in diagnosis.evidence:
        assert evidence.text[:40] in lines[evidence.line - 1].replace('\\"', '"').replace(
            "\\u003c", "<"
        ).replace("\\u003e", ">").replace("\x1b[0;36m", "").replace("\x1b[0;0m", "")


@pytest.mark.parametrize("path", OTHERS, ids=_name)
def test_a_look_alike_a_clean_log_and_a_wrapper_alone_name_nothing(path: Path) -> None:
    diagnosis = diagnose_file(str(path))
    assert (diagnosis.cause.id, diagnosis.also) == ("unknown", ())


@pytest.mark.parametrize("path", _ALL, ids=_name)
def test_line_by_line_and_in_chunks_give_the_same(path: Path) -> None:
    by_line = diagnose(path.read_bytes().decode().split("\n"))
    assert by_line.to_json() == diagnose_file(str(path)).to_json()
