"""2-bit experts and their correction pool as a user runs them: figures, heat, a damaged file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import ROOT, Dsctl

QUESTIONS = yaml.safe_load((ROOT / "canary" / "questions.yaml").read_text())
PLAIN = [
    q
    for q in (QUESTIONS["questions"] if isinstance(QUESTIONS, dict) else QUESTIONS)
    if q["kind"] == "plain"
]


@pytest.fixture
def settings(dsctl: Dsctl) -> list[str]:
    """`--set` of a 2-bit start whose pool holds half of the experts; builds the pack."""
    done = dsctl.run(
        "pack", "build", "--checkpoint", str(ROOT / "canary" / "model"),
        "--out", str(dsctl.home / "packs"), "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pack = json.loads(done.stdout)["pack"]
    given = {
        "experts": "w2-resident",
        "pack_dir": pack,
        "pool_gib": 0.001,
        "heat_dir": dsctl.home / "heat",
        "heat_every_s": 0.5,
    }
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


def figures(status: dict[str, Any]) -> dict[str, float]:
    """Our metrics on the engine's page, without their labels."""
    base = re.sub(r"/v1/?$", "", status["endpoint"])
    found = {}
    for line in httpx.get(f"{base}/metrics", timeout=60).text.splitlines():
        if line.startswith("dsruntime_"):
            name, value = line.rsplit(" ", 1)
            assert '{rank="0"}' in name
            found[name.split("{")[0]] = float(value)
    return found


def ask(status: dict[str, Any], question: dict[str, Any]) -> str:
    base = re.sub(r"/v1/?$", "", status["endpoint"])
    body = {
        "model": status["model"],
        "messages": question["messages"],
        "max_tokens": question.get("max_tokens", 256),
        "temperature": 0.0,
    }
    answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=120).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text.strip()


def started(dsctl: Dsctl, settings: list[str]) -> tuple[dict[str, Any], str]:
    """Status and engine log of a start that must succeed."""
    done = dsctl.run(*dsctl.up_arguments("--timeout", "600", *settings), timeout_s=700)
    assert done.returncode == 0, done.stderr
    return dsctl.status(), dsctl.run("logs").stdout


@pytest.mark.long
def test_the_pool_fills_is_counted_and_is_warm_at_the_next_start(
    dsctl: Dsctl, settings: list[str]
) -> None:
    status, log = started(dsctl, settings)
    assert "correction pool of " in log
    assert "slots warm" not in log
    before = figures(status)
    assert 4 <= before["dsruntime_pool_slots"] <= 24
    for question in PLAIN[:4]:
        assert ask(status, question) == question["expected"].strip()
    after = figures(status)
    assert after["dsruntime_expert_uses_total"] > before["dsruntime_expert_uses_total"]
    assert after["dsruntime_pool_promotions_total"] >= after["dsruntime_pool_corrected_experts"] > 0
    assert after["dsruntime_pool_moved_bytes_total"] > 0
    assert 0 < after["dsruntime_pool_hit_ratio"] < 1
    assert 0 < after["dsruntime_pool_coverage_ratio"] < 1
    assert dsctl.run("down").returncode == 0
    (kept,) = (dsctl.home / "heat").glob("heat-*.json")

    status, log = started(dsctl, settings)
    (warm,) = re.findall(r"(\d+) slots warm from (\S+)", log)
    slots = figures(status)["dsruntime_pool_slots"]
    assert Path(warm[1]) == kept
    assert int(warm[0]) == slots, "not every slot was filled before the engine was ready"
    assert figures(status)["dsruntime_pool_corrected_experts"] == slots
    assert ask(status, PLAIN[0]) == PLAIN[0]["expected"].strip()
    assert dsctl.run("down").returncode == 0


def test_a_damaged_heat_file_costs_a_warm_start_and_no_more(
    dsctl: Dsctl, settings: list[str]
) -> None:
    directory = dsctl.home / "heat"
    directory.mkdir()
    pack = Path(next(s.split("=", 1)[1] for s in settings if s.startswith("pack_dir=")))
    identity = json.loads((pack / "pack.json").read_text())["source"]["identity"]
    (directory / f"heat-{identity[:16]}.json").write_text('{"version": 1, "model": "')
    status, log = started(dsctl, settings)
    assert re.search(r"heat-\w+\.json is damaged: .*; the pool starts cold", log)
    assert ask(status, PLAIN[0]) == PLAIN[0]["expected"].strip()
