"""Measured speeds against the planner's prediction. Pure over both documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsctl.bench.figures import summarise
from dsctl.bench.schema import BenchResult
from dsctl.bench.table import test_names
from dsctl.errors import ConfigError, NotGoodError
from dsctl.model.base import Value


class Prediction(Value):
    """What `dsctl plan` says in tok/s: likely `low` to `high`, and the `bound` of the hardware."""

    low: float
    high: float
    bound: float


class Point(Value):
    """One measured test beside its prediction."""

    test: str
    measured_tok_s: float
    low: float
    high: float
    bound: float

    @property
    def share_of_bound(self) -> float:
        """Measured over what the hardware allows at most."""
        return self.measured_tok_s / self.bound

    @property
    def verdict(self) -> str:
        """In words."""
        if self.measured_tok_s > self.bound:
            return "above the bound: the prediction or the measurement is wrong"
        if self.measured_tok_s < self.low:
            return "slower than predicted"
        return "faster than predicted" if self.measured_tok_s > self.high else "as predicted"


class Roofline(Value):
    """All points."""

    profile: str
    points: tuple[Point, ...]


def read_prediction(path: Path) -> tuple[str, dict[str, Prediction]]:
    """(profile, prediction of `decode` and `prefill`) out of a plan's JSON.

    Raises:
        ConfigError: not a plan.
        NotGoodError: the planner predicts no speed for this profile.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        profile, speed = str(document["profile"]), document["speed"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"--plan {path} is not a plan", remedy="`dsctl plan --profile P --format json > FILE`"
        ) from None
    if speed is None:
        raise NotGoodError(
            f"the planner predicts no speed for {profile}",
            remedy="predictions exist for profiles with GPUs",
        )
    return profile, {
        name: Prediction(**{key: speed[name][key] for key in ("low", "high", "bound")})
        for name in ("decode", "prefill")
    }


def roofline(result: BenchResult, predicted: tuple[str, dict[str, Prediction]]) -> Roofline:
    """Every single-stream cell held against the prediction.

    Raises:
        NotGoodError: the plan is of another profile, or there is no single-stream cell.
    """
    profile, prediction = predicted
    if result.conditions.profile not in (None, profile):
        raise NotGoodError(
            f"the plan is of {profile}, the measurement of {result.conditions.profile}",
            remedy="plan the profile that was measured",
        )
    points = []
    for cell in result.cells:
        if cell.concurrency > 1 or not cell.rounds:
            continue
        s = summarise(cell)
        names = test_names(cell)
        pairs = ((names[0], s.prefill_tok_s, "prefill"), (names[1], s.decode_tok_s, "decode"))
        for test, spread, kind in pairs:
            if spread is not None:
                p = prediction[kind]
                points.append(
                    Point(
                        test=test,
                        measured_tok_s=spread.mean,
                        low=p.low,
                        high=p.high,
                        bound=p.bound,
                    )
                )
    if not points:
        raise NotGoodError("nothing was measured with one stream", remedy="run with `-c 1`")
    return Roofline(profile=profile, points=tuple(points))
