"""Directories that dsctl makes for itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsctl.errors import ConfigError
from dsctl.paths import make_writable


def test_many_may_prove_one_directory_at_once(tmp_path: Path) -> None:
    wanted = tmp_path / "state" / "deployment"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make_writable(wanted, "state"), range(400)))
    assert set(made) == {wanted}
    assert list(wanted.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match=r"the state directory .*state/deployment"):
        make_writable(tmp_path / "state" / "deployment", "state")
