"""After a failure: never the same thing three times, only what the profile allows, and an end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsctl.errors import ConfigError
from dsctl.model.profile import Knob, Profile, Retry, Source
from dsctl.model.sample import Action
from dsctl.planning.catalog import load_profile
from dsctl.supervise.rules import Attempt, Limits, next_step, restart_step
from dsctl.supervise.rules.context import limits_of

DUAL = load_profile("dual96-dspark", {})
SINGLE = load_profile("single96-resident", {})


def after(*causes: str, profile: Profile = DUAL, **changes: Any) -> Any:
    return next_step([Attempt(cause=c, changes=changes) for c in causes], profile, remedy="R")


def test_a_transient_cause_is_tried_once_more_as_it_is() -> None:
    first = after("memory.vram-busy-at-start")
    assert first.action is Action.RETRY
    assert first.wait_s > 0
    assert after("memory.vram-busy-at-start", "memory.vram-busy-at-start").action is Action.STOP


@pytest.mark.parametrize("cause", ["config.invalid-argument", "unknown", "output.garbage"])
def test_what_must_fail_again_stops_with_cause_and_remedy(cause: str) -> None:
    found = after(cause)
    assert (found.action, found.remedy) == (Action.STOP, "R")
    assert cause in found.why


def test_a_change_that_the_profile_allows_is_named_with_its_reason() -> None:
    found = after("memory.vram-oom-capture", profile=SINGLE)
    assert found.action is Action.RETRY_CHANGED
    retry = next(r for r in SINGLE.retry if "memory.vram-oom-capture" in r.causes)
    assert (found.knob, found.value) == (retry.knob, retry.values[0])
    assert retry.why in found.why


def test_values_come_in_order_and_end() -> None:
    retry = next(r for r in SINGLE.retry if "memory.vram-oom-capture" in r.causes)
    attempts = [Attempt(cause="memory.vram-oom-capture")]
    for value in retry.values:
        step = next_step(attempts, SINGLE)
        assert (step.action, step.value) == (Action.RETRY_CHANGED, value)
        attempts.append(
            Attempt(cause="memory.vram-oom-capture", changes={step.knob or "": step.value})
        )
    last = next_step(attempts, SINGLE, remedy="R")
    assert last.action is Action.STOP
    assert "every value" in last.why


def test_a_knob_that_the_user_has_set_is_left_alone() -> None:
    found = next_step(
        [Attempt(cause="memory.kv-too-small")], SINGLE, chosen=frozenset({"max_model_len"})
    )
    assert found.action is Action.STOP
    assert "max_model_len, but you have set it" in found.why


def test_a_value_that_is_in_force_already_is_no_change() -> None:
    off = next_step([Attempt(cause="comm.p2p-hang")], DUAL, current={"peer_to_peer": "off"})
    assert off.action is Action.STOP
    on = next_step([Attempt(cause="comm.p2p-hang")], DUAL, current={"peer_to_peer": "on"})
    assert (on.action, on.knob, on.value) == (Action.RETRY_CHANGED, "peer_to_peer", "off")


CAUSES = st.sampled_from(
    [
        "memory.vram-busy-at-start",
        "engine.worker-died",
        "comm.p2p-hang",
        "memory.vram-oom-load",
        "memory.kv-too-small",
        "unknown",
        "a",
        "b",
    ]
)
RETRIES = st.lists(
    st.builds(
        Retry,
        causes=st.lists(CAUSES, min_size=1, max_size=3).map(tuple),
        knob=st.sampled_from(["x", "y", "z"]),
        values=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
        why=st.just("test"),
    ),
    max_size=4,
)


@given(causes=st.lists(CAUSES, min_size=60, max_size=60), retries=RETRIES)
def test_every_chain_of_failures_ends_and_nothing_is_started_three_times(
    causes: list[str], retries: list[Retry]
) -> None:
    """Laws: it ends; no configuration runs three times; every change is one of the profile's."""
    profile = DUAL.model_copy(update={"retry": tuple(retries)})
    attempts: list[Attempt] = []
    changes: dict[str, Any] = {}
    for cause in causes:
        attempts.append(Attempt(cause=cause, changes=changes))
        step = next_step(attempts, profile)
        if step.action is Action.STOP:
            break
        if step.action is Action.RETRY_CHANGED:
            assert step.knob is not None
            assert any(step.knob == r.knob and step.value in r.values for r in retries)
            assert step.value != changes.get(step.knob)
            changes = {**changes, step.knob: step.value}
        else:
            assert step.action is Action.RETRY
    else:
        raise AssertionError("60 failures and it still goes on")
    started = [json.dumps(a.changes, sort_keys=True) for a in attempts]
    assert max(started.count(s) for s in started) <= 2


LIMITS = Limits(restarts=4, restart_window_s=3600, backoff_s=5, backoff_most_s=30)


def test_restarts_wait_longer_each_time_and_end_as_a_crash_loop() -> None:
    deaths: list[float] = []
    waits = []
    for n in range(5):
        deaths.append(100.0 * n)
        step = restart_step(deaths, "engine.worker-died", LIMITS)
        if step.action is Action.STOP:
            assert "crash loop: it died 5 times in 6 min 40 s (engine.worker-died)" in step.why
            break
        waits.append(step.wait_s)
    assert waits == [5, 10, 20, 30]


def test_deaths_of_long_ago_are_forgotten() -> None:
    step = restart_step([0, 10, 20, 30, 10_000], "engine.worker-died", LIMITS)
    assert (step.action, step.wait_s) == (Action.RESTART, 5)


@pytest.mark.parametrize("cause", ["gpu.fell-off-bus", "driver.library-mismatch", "pack.corrupt"])
def test_what_a_restart_cannot_mend_stops_at_once(cause: str) -> None:
    assert restart_step([0.0], cause, LIMITS).action is Action.STOP


def test_an_engine_killed_for_memory_gets_its_restarts() -> None:
    assert restart_step([0.0], "container.oom-killed", LIMITS).action is Action.RESTART


@given(
    gaps=st.lists(st.floats(0.0, 200.0, allow_nan=False), min_size=30, max_size=30),
)
def test_whatever_dies_all_the_time_is_given_up(gaps: list[float]) -> None:
    """Law: deaths that come fast enough end in STOP, whatever their rhythm."""
    deaths: list[float] = []
    now = 0.0
    for gap in gaps:
        now += gap
        deaths.append(now)
        step = restart_step(deaths, "engine.worker-died", LIMITS)
        if step.action is Action.STOP:
            return
        assert 0 < step.wait_s <= 30
        now += step.wait_s
    raise AssertionError("30 deaths in a row and it still restarts")


def limited(**limits: Any) -> Profile:
    knobs = {name: Knob(value=value, source=Source.USER) for name, value in limits.items()}
    return DUAL.model_copy(update={"limits": knobs})


def test_a_profile_may_replace_a_bound_by_name() -> None:
    found = limits_of(limited(stall_grace_s=300, start_timeout_s=900))
    assert found == Limits(stall_grace_s=300)


@pytest.mark.parametrize("value", ["soon", True, -1, None])
def test_a_bound_that_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"limit 'stuck_s'"):
        limits_of(limited(stuck_s=value))
