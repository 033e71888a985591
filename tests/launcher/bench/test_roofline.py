"""Measured speeds beside the planner's own prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.bench.roofline import Roofline, read_prediction, roofline
from dsctl.bench.schema import BenchResult, Cell, Round, Sample, Spec
from dsctl.errors import ConfigError, NotGoodError
from dsctl.measure.conditions import Conditions
from tests.support.endpoint.command import main

TWO_CARDS = Path(__file__).parents[2] / "hosts" / "workstation-dual-healthy"
CARDS = "dual96-dspark"


@pytest.fixture
def plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """The file that a user makes: `dsctl plan … --format json > plan.json`."""
    assert main(["plan", "-p", CARDS, "--sysroot", str(TWO_CARDS), "--format", "json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capfd.readouterr().out)
    return path


def measured(decode_tok_s: float, profile: str | None = CARDS, concurrency: int = 1) -> BenchResult:
    """Ten tokens after a first one that took a second; a prompt of 1,000 tokens."""
    arrivals = tuple((1.0 + i / decode_tok_s, 1) for i in range(11))
    sample = Sample(
        began_s=0.0,
        ttfr_s=1.0,
        total_s=arrivals[-1][0],
        prompt_tokens=1000,
        cached_tokens=0,
        tokens=11,
        arrivals=arrivals,
    )
    cell = Cell(
        prefill=1000,
        decode=11,
        depth=0,
        concurrency=concurrency,
        cache="cold",
        rounds=(Round(samples=(sample,) * concurrency, latency_s=0.0),),
    )
    return BenchResult(
        created=1.0,
        command="dsctl bench run",
        conditions=Conditions(model="m", endpoint_kind="http", dsctl_version="0", profile=profile),
        spec=Spec(),
        token_counts="server",
        cells=(cell,),
    )


def decode_of(found: Roofline) -> tuple[float, str]:
    point = next(p for p in found.points if p.test.startswith("tg"))
    return point.measured_tok_s, point.verdict


def test_each_verdict_follows_from_the_prediction_of_the_plan(plan: Path) -> None:
    prediction = read_prediction(plan)
    decode = prediction[1]["decode"]
    assert 0 < decode.low < decode.high <= decode.bound
    for rate, verdict in (
        (decode.low * 0.5, "slower than predicted"),
        ((decode.low + decode.high) / 2, "as predicted"),
        (decode.bound * 1.5, "above the bound"),
    ):
        found, said = decode_of(roofline(measured(rate), prediction))
        assert found == pytest.approx(rate)
        assert said.startswith(verdict)
    prefill = next(p for p in roofline(measured(50), prediction).points if p.test.startswith("pp"))
    assert prefill.measured_tok_s == pytest.approx(1000)
    assert prefill.share_of_bound == pytest.approx(1000 / prediction[1]["prefill"].bound)


def test_a_plan_of_another_profile_or_only_many_streams_is_refused(plan: Path) -> None:
    prediction = read_prediction(plan)
    with pytest.raises(NotGoodError, match=f"the plan is of {CARDS}, the measurement of other"):
        roofline(measured(50, profile="other"), prediction)
    with pytest.raises(NotGoodError, match="nothing was measured with one stream"):
        roofline(measured(50, concurrency=2), prediction)


def test_what_is_no_plan_and_a_plan_without_speeds_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="is not a plan"):
        read_prediction(path)
    path.write_text('{"profile": "cpu-canary", "speed": null}')
    with pytest.raises(NotGoodError, match="predicts no speed for cpu-canary"):
        read_prediction(path)


def test_the_command_prints_a_line_for_each_test(
    plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    file.write_text(measured(50).model_dump_json())
    assert main(["bench", "roofline", str(file), "--plan", str(plan)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["test", "pp1000", "tg11"]
