"""No profile claims more than was run, and whoever lists them sees which can be started."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsctl.errors import NotGoodError
from dsctl.model.profile import Profile, Status, Verified
from dsctl.planning.catalog import load_profile, profile_names
from dsctl.planning.startable import lack_of
from dsctl.supervise.selection import refuse_what_cannot_start

LACKS = {
    "cpu-canary": None,
    "dual96-community-image": None,
    "dual96-dspark": None,
    "dual96-native": None,
    "dual96-w2": None,
    "hybrid-cpu": "unsupported",
    "single96-basecache": "not yet",
    "single96-dspark": "not yet",
    "single96-resident": None,
    "single96-wsl": None,
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
    assert (profile.verified is Verified.NONE) == (not profile.verified_how)


def test_whoever_starts_what_never_ran_is_told(profile: Profile) -> None:
    if profile.verified is Verified.NONE and lack_of(profile) is None:
        assert profile.status in (Status.EXPERIMENTAL, Status.EXTERNAL)
        assert profile.status_reason


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("experts", "w2-cache"),
        ("mapped_layers", "0-3"),
        ("gate_threshold", "0.5"),
        ("prefill_policy", "ensure"),
    ],
)
def test_what_the_plugin_refuses_on_a_gpu_is_refused_before_it_starts(
    knob: str, value: str
) -> None:
    lack = lack_of(load_profile("single96-resident", {knob: value}))
    assert lack is not None
    assert knob in lack.why
    assert lack_of(load_profile("cpu-canary", {knob: value})) is None


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
    assert {name for name, row in rows.items() if row["starts"]} == {
        name for name, lack in LACKS.items() if lack is None
    }
    assert all(bool(row["why_not"]) != row["starts"] for row in rows.values())
    table = dsctl("list")
    assert table.count("starts it") == 7
    assert table.count("not yet") == 2


def test_show_says_it_too() -> None:
    assert "dsctl up: refuses it: experts=w2-cache" in dsctl("show", "single96-basecache")
    assert "dsctl up: starts it" in dsctl("show", "cpu-canary")
