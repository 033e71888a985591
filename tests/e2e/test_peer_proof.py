"""The proving run with real collectives: gloo carries them here, NCCL on the cards."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from dsctl.preflight.prove import run_arm


def _python_with_torch() -> Path | None:
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable)
    named = os.environ.get("DSCTL_ENGINE_PYTHON")
    if named:
        return Path(named)
    from dsctl.engine.environment import environment_for
    from dsctl.engine.lockfile import read_lock
    from dsctl.paths import user_paths

    environment = environment_for(read_lock("cpu"), user_paths())
    return environment.python if environment.is_ready() else None


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("extra", "ended", "says"),
    [((), "ok", "all values right"), (("--corrupt",), "wrong data", "1 of 4194304 values wrong")],
)
def test_real_all_reduces_over_gloo_are_checked_value_by_value(
    extra: tuple[str, ...], ended: str, says: str
) -> None:
    python = _python_with_torch()
    if python is None:
        pytest.skip("no Python with torch: `dsctl env build` makes one")
    arm = run_arm(python, peers=True, backend="gloo", deadline_s=120, extra=extra)
    assert arm.ended == ended, arm.said
    assert says in arm.said
