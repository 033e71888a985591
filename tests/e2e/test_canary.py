"""`dsctl up` with the real engine and the real canary, as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.conftest import ROOT, Dsctl, events_until, left_running, rest_of

pytestmark = pytest.mark.engine

CANARY = ROOT / "canary"
QUESTIONS = yaml.safe_load((CANARY / "questions.yaml").read_text())["questions"]


def ask(port: int, question: dict) -> dict:
    """One chat completion with the request that a client of this question would send."""
    body = {
        "model": "deepseek-v4-canary",
        "messages": question["messages"],
        "max_tokens": question.get("max_tokens", 256),
        "temperature": 0.0,
        "chat_template_kwargs": {"thinking": question["kind"] == "thinking"},
    }
    if question.get("tools"):
        body["tools"] = question["tools"]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=120).raise_for_status().json()
    return answer["choices"][0]["message"]


def test_the_whole_chain(dsctl: Dsctl) -> None:
    """up → right answers of every kind → status → up again → restart → logs → down."""
    up = dsctl.up()
    assert up.returncode == 0, up.stderr
    assert "known question answered rightly" in up.stderr

    status = dsctl.status()
    assert status["ready"] is True
    assert status["phase"] == "ready"
    assert status["memory"]["rss_bytes"] > 100 << 20
    first_pid = status["pid"]
    command = Path(f"/proc/{first_pid}/cmdline").read_bytes()
    assert b"serve" in command

    for question in QUESTIONS:
        message = ask(dsctl.port, question)
        if question["kind"] == "tool":
            call = message["tool_calls"][0]["function"]
            expected = question["expected_tool_call"]
            assert call["name"] == expected["name"], question["id"]
            assert json.loads(call["arguments"]) == expected["arguments"], question["id"]
        else:
            assert (message["content"] or "").strip() == question["expected"].strip(), question[
                "id"
            ]
        if question.get("expected_reasoning"):
            reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
            assert reasoning.strip() == question["expected_reasoning"].strip()

    plain = next(q for q in QUESTIONS if q["kind"] == "plain" and len(q["messages"]) == 1)
    chat = dsctl.run("chat", plain["messages"][0]["content"])
    assert chat.returncode == 0, chat.stderr
    assert plain["expected"].strip() in chat.stdout

    again = dsctl.up()
    assert again.returncode == 0
    assert dsctl.status()["pid"] == first_pid, "a second up is the same deployment"

    restarted = dsctl.run("restart")
    assert restarted.returncode == 0, restarted.stderr
    assert dsctl.status()["pid"] != first_pid
    assert left_running(dsctl.home) != []

    logs = dsctl.run("logs")
    assert "Application startup complete" in logs.stdout

    down = dsctl.run("down")
    assert down.returncode == 0
    assert left_running(dsctl.home) == []
    assert dsctl.status()["phase"] == "stopped"
    assert dsctl.run("chat", "hello").returncode == 1


@pytest.mark.parametrize(
    "event",
    [
        "preflight",
        "start",
        pytest.param("load-start", marks=pytest.mark.long),
        pytest.param("kv-cache", marks=pytest.mark.long),
    ],
)
def test_ctrl_c_leaves_nothing_running(dsctl: Dsctl, event: str) -> None:
    process = dsctl.start_up()
    events_until(process, event)
    process.send_signal(signal.SIGINT)
    events, said = rest_of(process)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert events[-1]["ready"] is False
    assert left_running(dsctl.home) == []
    assert dsctl.status()["phase"] == "stopped"


@pytest.mark.long
def test_a_second_ctrl_c_does_not_cut_the_taking_down_short(dsctl: Dsctl) -> None:
    process = dsctl.start_up()
    events_until(process, "engine-init")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.15)
    _, said = rest_of(process)
    assert process.returncode == 130, said
    assert left_running(dsctl.home) == []
    assert dsctl.status()["phase"] == "stopped"


def test_an_up_whose_reader_goes_away_leaves_no_engine(dsctl: Dsctl) -> None:
    """`dsctl up --format json | grep -m1 start`"""
    process = dsctl.start_up()
    events_until(process, "start")
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=120)
    assert process.returncode != 0
    assert left_running(dsctl.home) == []


def test_down_cancels_every_up_that_is_at_work_or_waits(dsctl: Dsctl) -> None:
    first = dsctl.start_up()
    events_until(first, "start")
    second = dsctl.start_up()
    events_until(second, "joined")
    began = time.monotonic()
    assert dsctl.run("down").returncode == 0
    assert time.monotonic() - began < 30
    for process in (first, second):
        _, said = rest_of(process)
        assert process.returncode == 130, said
    assert left_running(dsctl.home) == []


@pytest.mark.long
def test_a_stopped_engine_is_not_called_up(dsctl: Dsctl) -> None:
    assert dsctl.up().returncode == 0
    pid = dsctl.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        again = dsctl.up()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert again.returncode == 3
    assert "does not answer" in again.stderr


@pytest.mark.long
def test_a_closed_terminal_cancels_an_attached_start_but_not_a_detached_one(dsctl: Dsctl) -> None:
    attached = dsctl.start_up()
    events_until(attached, "start")
    attached.send_signal(signal.SIGHUP)
    rest_of(attached)
    assert attached.returncode == 130
    assert left_running(dsctl.home) == []

    detached = dsctl.start_up("--detach")
    events_until(detached, "start")
    os.kill(detached.pid, signal.SIGKILL)
    detached.communicate()
    deadline = time.monotonic() + 180
    while not dsctl.status()["ready"]:
        assert time.monotonic() < deadline
        time.sleep(1)


@pytest.mark.long
def test_two_ups_at_once_are_one_deployment(dsctl: Dsctl) -> None:
    results: list[subprocess.CompletedProcess[str]] = []
    threads = [threading.Thread(target=lambda: results.append(dsctl.up())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.returncode for r in results] == [0, 0], [r.stderr for r in results]
    assert any("waiting" in r.stderr for r in results)


def test_a_port_in_use_is_said_before_anything_is_started(dsctl: Dsctl) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", dsctl.port))
        squatter.listen()
        up = dsctl.up()
    assert up.returncode == 1
    assert "net.port" in up.stderr
    assert "--set port=" in up.stderr
    assert left_running(dsctl.home) == []


def test_a_start_that_takes_too_long_is_taken_down(dsctl: Dsctl) -> None:
    up = dsctl.up("--timeout", "3")
    assert up.returncode == 4
    assert "not ready after" in up.stderr
    assert left_running(dsctl.home) == []


@pytest.mark.long
def test_a_killed_engine_is_seen_at_once_and_an_up_has_it_running_again(dsctl: Dsctl) -> None:
    """The supervisor would start it again after a moment; an `up` does not wait for that."""
    assert dsctl.up().returncode == 0
    pid = dsctl.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    status = dsctl.run("status", "--format", "json")
    assert status.returncode == 1
    seen = json.loads(status.stdout)
    assert seen["ready"] is False
    assert seen["pid"] != pid
    assert dsctl.up().returncode == 0
    ready = dsctl.status()
    assert ready["ready"] is True
    assert ready["pid"] != pid


def damaged(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the canary to damage, and its shard."""
    copy = tmp_path / "model"
    shutil.copytree(CANARY / "model", copy)
    return copy, next(copy.glob("*.safetensors"))


def test_a_truncated_shard_is_found_before_the_start(dsctl: Dsctl, tmp_path: Path) -> None:
    copy, shard = damaged(tmp_path)
    os.truncate(shard, shard.stat().st_size // 2)
    up = dsctl.up("--set", f"checkpoint={copy}")
    assert up.returncode == 1
    assert shard.name in up.stderr
    assert "Traceback" not in up.stderr
    assert left_running(dsctl.home) == []


def test_damaged_weights_are_never_called_ready(dsctl: Dsctl, tmp_path: Path) -> None:
    """The right size, a valid header, wrong bytes: only the known answer can tell."""
    copy, shard = damaged(tmp_path)
    content = bytearray(shard.read_bytes())
    middle = len(content) // 2
    for at in range(middle, middle + len(content) // 8):
        content[at] ^= 0x55
    shard.write_bytes(content)
    up = dsctl.up("--set", f"checkpoint={copy}", "--format", "json")
    assert up.returncode == 3, up.stderr
    last = json.loads(up.stdout.strip().splitlines()[-1])
    assert last["ready"] is False
    assert dsctl.status()["last_cause"] == "output.garbage"
    assert left_running(dsctl.home) == []
