"""Xids, heat, and a driver that falls silent."""

from __future__ import annotations

from typing import Any

import pytest

from dsctl.model.sample import Action, Level, Xid
from dsctl.supervise.rules import Context
from dsctl.supervise.rules.hardware import driver_silent, heat, xids
from tests.support.samples import card, window

ANY = Context(phase_began=0.0)


def xid(code: int, t: float = 1004.0) -> Xid:
    text = f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name=python3, what it said"
    return Xid(code=code, bdf="0000:01:00", text=text, t=t)


@pytest.mark.parametrize(
    ("codes", "cause", "level"),
    [
        ((79,), "gpu.fell-off-bus", Level.ACT),
        ((119,), "gpu.gsp-timeout", Level.ACT),
        ((8,), "gpu.xid", Level.ACT),
        ((31,), "gpu.xid", Level.WARN),
        ((43, 79, 45), "gpu.fell-off-bus", Level.ACT),
    ],
)
def test_the_gravest_xid_is_named(codes: tuple[int, ...], cause: str, level: Level) -> None:
    found = xids(window(10, lambda t: {"xids": tuple(xid(c) for c in codes)}), ANY)
    assert found is not None
    assert (found.cause, found.level) == (cause, level)
    if level is Level.ACT:
        assert found.advice is not None
        assert found.advice.action is Action.STOP


def test_an_xid_from_before_the_window_is_old_news() -> None:
    assert xids(window(10, lambda t: {"xids": (xid(79, t=900.0),)}), ANY) is None


def test_a_card_that_throttles_for_heat_for_a_minute() -> None:
    hot = {"gpus": (card(), card(1, throttled_by=("thermal-hardware",), temperature_c=91.0))}
    found = heat(window(70, lambda t: hot), ANY)
    assert found is not None
    assert found.cause == "gpu.thermal"
    assert "GPU 1" in found.summary
    assert "91 °C" in found.summary
    assert heat(window(30, lambda t: hot), ANY) is None
    capped = {"gpus": (card(throttled_by=("power-cap",)),)}
    assert heat(window(70, lambda t: capped), ANY) is None


def test_a_driver_that_answered_and_is_silent_now() -> None:
    def parts(t: float) -> dict[str, Any]:
        if t < 6:
            return {"gpus": (card(),)}
        return {"gpus": None, "missing": {"gpus": "NVML: GPU is lost"}}

    found = driver_silent(window(10, parts), ANY)
    assert found is not None
    assert found.cause == "gpu.fell-off-bus"
    assert driver_silent(window(10, lambda t: {"gpus": None}), ANY) is None
