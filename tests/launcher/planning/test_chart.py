"""The picture: it is drawn, and shows the numbers of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.planning.catalog import load_profile
from dsctl.planning.plan import make_plan

pytest.importorskip("matplotlib")
from dsctl.planning.chart import draw


@pytest.mark.parametrize("name", ["single96-resident", "dual96-dspark"])
def test_both_kinds_of_file_are_drawn(tmp_path: Path, name: str) -> None:
    plan = make_plan(load_profile(name))
    draw(plan, tmp_path / "plan.svg")
    draw(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.svg").read_text().count("<path") > 50
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    plan = make_plan(load_profile("single96-resident"))
    with pytest.raises(ConfigError, match=r"\.svg and \.png"):
        draw(plan, tmp_path / "plan.gif")
    with pytest.raises(ConfigError, match="No such file"):
        draw(plan, tmp_path / "nowhere" / "plan.svg")
    with pytest.raises(ConfigError, match="no GPU"):
        draw(make_plan(load_profile("cpu-canary")), tmp_path / "plan.svg")
