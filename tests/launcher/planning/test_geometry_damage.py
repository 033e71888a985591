"""A configuration with values of the wrong kind is named, not tripped over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.planning.geometry import geometry_of
from dsctl.planning.knobs import KNOBS

CANARY = Path(__file__).resolve().parents[3] / "canary" / "model" / "config.json"


@pytest.mark.parametrize(
    ("key", "value"), [("num_hidden_layers", "x"), ("compress_ratios", None), ("hidden_size", [])]
)
def test_a_value_of_the_wrong_kind_names_the_file(tmp_path: Path, key: str, value: object) -> None:
    config = json.loads(CANARY.read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config\.json"):
        geometry_of(tmp_path, "canary")


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"finite|below|not"):
        KNOBS["pool_gib"].parse(text)
