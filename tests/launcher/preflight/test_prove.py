"""The proving run: its ends are told apart, a hang is ended, and a wrong value is seen."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dsctl.errors import NotGoodError
from dsctl.host.collect import collect
from dsctl.paths import Paths
from dsctl.preflight import prove
from dsctl.preflight.p2p_collective import expected
from dsctl.preflight.prove import Arm, judge, largest_pair, prove_and_keep, run_arm

HOSTS = Path(__file__).parents[2] / "hosts"


@pytest.mark.parametrize(
    ("on", "off", "verdict"),
    [
        ("ok", "ok", "healthy"),
        ("hang", "ok", "hang"),
        ("wrong data", "ok", "wrong data"),
        ("failed", "ok", "inconclusive"),
        ("hang", "hang", "inconclusive"),  # without peers it hangs too: peers are not the cause
        ("ok", "failed", "inconclusive"),
    ],
)
def test_the_control_arm_decides_what_the_other_arm_proves(on: str, off: str, verdict: str) -> None:
    assert judge(Arm(on, ""), Arm(off, "")) == verdict


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "script.py"
    monkeypatch.setattr(prove, "SCRIPT", path)
    return path


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        ("print('fine')", "ok"),
        ("import sys; print('7 wrong'); sys.exit(3)", "wrong data"),
        ("import sys; sys.exit(4)", "failed"),
        ("raise RuntimeError('no CUDA')", "failed"),
    ],
)
def test_how_an_arm_ends(script: Path, body: str, ended: str) -> None:
    script.write_text(body)
    assert run_arm(Path(sys.executable), peers=True, deadline_s=20).ended == ended


def test_a_hang_is_ended_with_all_its_children(script: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    arm = run_arm(Path(sys.executable), peers=True, deadline_s=1.5)
    assert arm.ended == "hang"
    assert time.monotonic() - began < 6
    time.sleep(0.1)
    assert not _is_running(int(pid.read_text()))


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_arms_differ_in_peer_access_alone(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_P2P_LEVEL", "LOC")  # the person's own setting must not decide
    script.write_text(
        "import os; print(os.environ.get('NCCL_P2P_DISABLE'), os.environ.get('NCCL_P2P_LEVEL'))"
    )
    assert run_arm(Path(sys.executable), peers=False, deadline_s=20).said == "1 None"
    assert run_arm(Path(sys.executable), peers=True, deadline_s=20).said == "None SYS"


def test_the_pair_is_that_of_the_engine_and_not_of_the_display(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dual = collect(HOSTS / "workstation-dual-healthy")
    small = collect(HOSTS / "display-card").gpus[0]
    large = tuple(g.model_copy(update={"index": g.index + 1}) for g in dual.gpus)
    assert dual.nvml is not None
    seen = dual.nvml.model_copy(update={"gpus": (small, *large)})
    facts = dual.model_copy(update={"nvml": seen})
    assert largest_pair(facts) == "1,2"
    assert largest_pair(dual) == "0,1"
    script.write_text("import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))")
    assert run_arm(Path(sys.executable), peers=True, deadline_s=20, cards="1,2").said == "1,2"


def test_without_two_cards_there_is_nothing_to_prove(tmp_path: Path) -> None:
    paths = Paths(data=tmp_path, state=tmp_path, cache=tmp_path, config=tmp_path)
    with pytest.raises(NotGoodError, match="two GPUs"):
        prove_and_keep(collect(HOSTS / "laptop-no-gpu"), paths, lambda _: None)


def test_expected_values() -> None:
    assert expected(2, 0) == 3.0
    assert expected(2, 19) == 41.0
