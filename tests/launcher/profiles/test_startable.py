"""No profile claims more than was run, and whoever lists them sees which can be started."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsctl.errors import NotGoodError
from dsctl.model.profile import Profile, Verified
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.startable import lack_of
from dsctl.supervise.selection import refuse_what_cannot_start

LACKS = {
    "cpu-canary": None,
    "dual96-community-image": "CPU engines only yet",
    "dual96-dspark": "CPU engines only yet",
    "dual96-native": "CPU engines only yet",
    "dual96-w2": "no 2-bit tiers yet",
    "hybrid-cpu": "unsupported",
    "single96-basecache": "no 2-bit tiers yet",
    "single96-dspark": "no 2-bit tiers yet",
    "single96-resident": "no 2-bit tiers yet",
    "single96-wsl": "no 2-bit tiers yet",
}


@pytest.fixture(params=profile_names())
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile(request.param)


def test_what_each_profile_lacks(profile: Profile) -> None:
    lack = lack_of(profile)
    assert (lack.short if lack else None) == LACKS[profile.id]


def test_up_refuses_exactly_what_lacks_something(profile: Profile) -> None:
    if LACKS[profile.id] is None:
        refuse_what_cannot_start(profile)
        return
    with pytest.raises(NotGoodError, match=f"profile {profile.id} cannot be started") as refused:
        refuse_what_cannot_start(profile)
    assert refused.value.remedy


def test_what_cannot_be_started_has_not_been_verified(profile: Profile) -> None:
    if lack_of(profile):
        assert profile.verified is Verified.NONE
    else:
        assert profile.verified_how


def dsctl(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dsctl", "profiles", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_list_says_which_can_be_started() -> None:
    rows = {row["id"]: row for row in json.loads(dsctl("list", "--format", "json"))}
    assert {name for name, row in rows.items() if row["starts"]} == {"cpu-canary"}
    assert all(bool(row["why_not"]) != row["starts"] for row in rows.values())
    table = dsctl("list")
    assert table.count("starts it") == 1
    assert table.count("no 2-bit tiers yet") == 5


def test_show_says_it_too() -> None:
    assert "dsctl up: refuses it: its 2-bit experts" in dsctl("show", "single96-resident")
    assert "dsctl up: starts it" in dsctl("show", "cpu-canary")
