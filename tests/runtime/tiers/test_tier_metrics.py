"""Figures travel from a worker's board to a Prometheus page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dsruntime.tiers.metrics import DIRECTORY, METRICS, Board, Collector, PoolSnapshot, Snapshot
from dsruntime.tiers.metrics import board_for as board_of_environment
from dsruntime.tiers.snapshot import BaseSnapshot

POOL = PoolSnapshot(uses=40, hits=10, promotions=3, moved_bytes=1 << 40, slots=5, corrected=3,
                    experts=12)  # fmt: skip
BASE = BaseSnapshot(decode_steps=8, replayed_steps=2, replays=4, arena_hits=7, degraded_steps=1)


def page(directory: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Collector(directory))
    lines = generate_latest(registry).decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def test_every_figure_is_on_the_page_by_rank(tmp_path: Path) -> None:
    boards = [Board(tmp_path, rank) for rank in range(2)]
    boards[0].show(Snapshot(POOL, BASE))
    found = page(tmp_path)
    assert found['dsruntime_pool_promotions_total{rank="0"}'] == 3
    assert found['dsruntime_pool_promotions_total{rank="1"}'] == 0
    assert found['dsruntime_pool_moved_bytes_total{rank="0"}'] == 1 << 40
    assert found['dsruntime_pool_hit_ratio{rank="0"}'] == 0.25
    assert found['dsruntime_pool_coverage_ratio{rank="0"}'] == 0.25
    assert found['dsruntime_replays_per_step{rank="0"}'] == 0.5
    assert found['dsruntime_base_coverage_ratio{rank="0"}'] == 0.75
    assert found['dsruntime_degraded_steps_total{rank="0"}'] == 1
    assert len(found) == 2 * len(METRICS)
    boards[0].show(Snapshot(PoolSnapshot(promotions=4), BASE))
    assert page(tmp_path)['dsruntime_pool_promotions_total{rank="0"}'] == 4


def test_names_are_prometheus_names_and_each_has_a_help_text(tmp_path: Path) -> None:
    names = Counter(metric.name for metric in METRICS)
    assert max(names.values()) == 1
    assert all(name.startswith("dsruntime_") and name == name.lower() for name in names)
    registry = CollectorRegistry()
    registry.register(Collector(tmp_path))
    text = generate_latest(registry).decode()
    for metric in METRICS:
        shown = metric.name + ("_total" if metric.kind == "counter" else "")
        assert f"# HELP {shown} {metric.text}" in text
        assert f"# TYPE {shown} {metric.kind}" in text


def test_a_file_of_another_version_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank-0.f64").write_bytes(bytes(8))
    assert page(tmp_path) == {}


def test_without_an_endpoint_there_is_no_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    assert board_of_environment(0) is None
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "gone"))
    assert board_of_environment(0) is None
